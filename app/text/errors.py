"""Errors of this package."""

from __future__ import annotations


class ChatTemplateError(ValueError):
    """The model has no chat template, or its template refuses the messages. The message can be shown to a user.

    param: dotted path to the refused field.
    """

    def __init__(self, message: str, param: str = "messages") -> None:
        super().__init__(message)
        self.param = param


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or followed any further. The message can be shown to a user.

    param: dotted path to the field that asked for the grammar, if known.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class GrammarTooExpensive(GrammarError):
    """The grammars of one request take too long to compile."""
