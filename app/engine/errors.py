"""Errors the engine raises. They know nothing of HTTP; the API turns them into responses in one place."""

from __future__ import annotations


class EngineError(Exception):
    """Base of all. The message can be shown to a user."""


class InvalidRequest(EngineError):
    """A request the engine cannot run. param: the dotted name of the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthExceeded(InvalidRequest):
    """Prompt and tokens to generate do not fit the context."""

    def __init__(self, prompt_tokens: int, max_tokens: int | None, max_context: int, param: str = "prompt") -> None:
        wanted = f"{prompt_tokens} prompt tokens" + (f" and {max_tokens} to generate" if max_tokens else "")
        super().__init__(
            f"This model's context is {max_context} tokens, but the request asks for {wanted}. "
            "Shorten the prompt or lower max_tokens.",
            param,
        )
        self.prompt_tokens = prompt_tokens
        self.max_context = max_context


class QueueFull(EngineError):
    """The waiting queue is full. retry_after: seconds."""

    def __init__(self, retry_after: int = 1) -> None:
        super().__init__("The server is busy: its queue is full. Try again later.")
        self.retry_after = retry_after


class EngineClosed(EngineError):
    """The engine is stopping or has stopped."""

    def __init__(self, message: str = "The engine is shutting down.") -> None:
        super().__init__(message)


class EngineFailed(EngineClosed):
    """The engine has given up: its model fails again and again, or its thread has died."""

    def __init__(self) -> None:
        super().__init__("The engine has failed; the server's log says why.")


class GenerationLost(EngineError):
    """The engine gave up while this generation ran. The request may be the cause, so do not retry it without being asked."""

    def __init__(self) -> None:
        super().__init__("The engine failed while this generation ran; the server's log says why.")


class ModelLoadError(EngineError):
    """A model could not be loaded; the message says what to do."""
