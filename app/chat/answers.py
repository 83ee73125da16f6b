"""Where answers come from: a loaded engine, or a running server. Both can be stopped from a signal handler."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import httpx
from httpx_sse import EventSource

from app.chat.dialogue import Piece, Turn, TurnEnd
from app.engine.errors import EngineClosed, EngineError
from app.engine.events import Event, Failed, Finished
from app.engine.interface import EngineInterface, GenerationHandle
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams

CONNECT_SECONDS = 10.0


class AnswerSource(Protocol):
    def __iter__(self) -> Iterator[Piece | TurnEnd]:
        """Pieces, then one TurnEnd; raises EngineError or ValueError when the answer fails."""

    def stop(self) -> None:
        """Let the answer end soon, with reason `cancelled`. Safe in a signal handler."""


Ask = Callable[[Turn], AnswerSource]


class EngineAnswer:
    """An answer of an engine in this process."""

    def __init__(self, engine: EngineInterface, turn: Turn) -> None:
        """Raises EngineError or ValueError when the messages cannot be asked."""
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._detokenizer = engine.codec.detokenizer()
        settings = turn.settings
        prompt = engine.codec.read_chat(turn.messages)
        self._thoughts = None if prompt.thoughts is None else prompt.thoughts.parser()
        request = GenerationRequest(
            tuple(prompt.ids),
            SamplingParams(temperature=settings.temperature, seed=settings.seed),
            StopParams(max_tokens=settings.max_tokens),
            SpeculationParams("none") if turn.plain else SpeculationParams(),
            conversation=turn.conversation,
        )
        self._handle: GenerationHandle = engine.submit(request, self._events.put)

    def stop(self) -> None:
        self._handle.cancel()

    def __iter__(self) -> Iterator[Piece | TurnEnd]:
        """The text is cut by token here, since an event holds that of a whole step."""
        try:
            while True:
                event = self._events.get()
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Finished):
                    yield from self._told(self._detokenizer.flush(), "target", ends=True)
                    yield _outcome(event)
                    return
                for place, (token, source) in enumerate(zip(event.token_ids, event.sources, strict=True)):
                    yield from self._told(self._detokenizer.push(token), source, rescued=place in event.rescued)
        finally:
            self._handle.cancel()

    def _told(self, text: str, source: str, *, rescued: bool = False, ends: bool = False) -> Iterator[Piece]:
        """The text of one token as thoughts and content."""
        if self._thoughts is None:
            yield Piece(text, source, rescued)
            return
        found = [self._thoughts.push(text), *([self._thoughts.end()] if ends else [])]
        for thought, content in found:
            if thought:
                yield Piece(thought, source, rescued, thought=True)
            if content or not thought:
                yield Piece(content, source, rescued)


def _outcome(end: Finished) -> TurnEnd:
    stats = end.stats
    return TurnEnd(
        end.reason,
        end.completion_tokens,
        stats.num_steps,
        stats.num_accepted_tokens,
        end.prompt_tokens,
        end.cached_tokens,
        stats.drafter,
        dict(stats.tokens_by_source),
        stats.rescues,
    )


class ServerAnswer:
    """An answer of a server, streamed on a thread of its own so that it can be left at any moment."""

    def __init__(self, url: str, key: str | None, turn: Turn) -> None:
        self._items: queue.SimpleQueue[Piece | TurnEnd | Exception] = queue.SimpleQueue()
        self._url = f"{url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._stopped = False
        settings = turn.settings
        speculative: dict[str, Any] = {"trace": True} | ({"drafter": "none"} if turn.plain else {})
        self._body = {
            "messages": turn.messages,
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "session_id": turn.conversation,
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculative": speculative,
        } | ({} if settings.seed is None else {"seed": settings.seed})
        threading.Thread(target=self._run, name="chat-stream", daemon=True).start()

    def stop(self) -> None:
        self._stopped = True
        self._items.put(TurnEnd("cancelled", 0, 0, 0, 0, 0, "of the server", {}))

    def __iter__(self) -> Iterator[Piece | TurnEnd]:
        tokens = 0
        while True:
            item = self._items.get()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, TurnEnd):
                yield item if item.tokens else TurnEnd(item.reason, tokens, 0, 0, 0, 0, item.drafter, {})
                return
            tokens += 1
            yield item

    def _run(self) -> None:
        try:
            self._stream()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._items.put(EngineClosed(f"The server cannot be reached ({type(error).__name__}): check --url."))
        except Exception as error:  # the other thread waits for the end, whatever it is
            self._items.put(error)

    def _stream(self) -> None:
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        final: dict[str, Any] = {}
        spread = Spread()
        with httpx.stream("POST", self._url, json=self._body, headers=self._headers, timeout=timeout) as reply:
            if reply.status_code != httpx.codes.OK:
                reply.read()
                raise EngineError(_refusal(reply))
            for event in EventSource(reply).iter_sse():
                if self._stopped:
                    return  # leaving the block closes the connection, which frees the slot
                if event.data == "[DONE]":
                    continue
                chunk = json.loads(event.data)
                if "error" in chunk:
                    raise EngineError(str(chunk["error"].get("message")))
                final |= {name: chunk[name] for name in ("usage", "metrics") if chunk.get(name)}
                for choice in chunk.get("choices", ()):
                    final["reason"] = choice.get("finish_reason")
                    spread.tokens += pieces_of(choice.get("trace", ()))
                    for name in ("reasoning_content", "content"):
                        for piece in spread.share(choice.get("delta", {}).get(name) or ""):
                            self._items.put(replace(piece, thought=name == "reasoning_content"))
        self._items.put(_outcome_of(final))


class Spread:
    """Shares streamed text out over the tokens that made it. Half characters go to the token that completes them.

    tokens: those that have come, some of whose text may follow later.
    """

    def __init__(self) -> None:
        self.tokens: list[Piece] = []

    def share(self, content: str) -> list[Piece]:
        """content: text that has come. Tokens that nothing of it is like are passed over: the tags of thoughts are no text."""
        pieces = []
        while content:
            found = next(
                (place for place, token in enumerate(self.tokens) if token.text and content.startswith(token.text)), -1
            )
            if found >= 0:
                token = self.tokens[found]
                text = token.text
            else:
                token, text = (self.tokens or [Piece("", "target")])[0], content
            del self.tokens[: max(found, 0) + 1]
            pieces.append(Piece(text, token.source, token.rescued))
            content = content[len(text) :]
        return pieces


def pieces_of(trace: Any) -> list[Piece]:
    """The entries of a trace, each with the token's own text."""
    return [Piece(entry["text"], entry["source"], entry["rescued"]) for entry in trace]


def _outcome_of(final: dict[str, Any]) -> TurnEnd:
    usage = final.get("usage", {})
    stats = final.get("metrics", {}).get("speculative_decoding", {})
    return TurnEnd(
        final.get("reason") or "stop",
        usage.get("completion_tokens", 0),
        stats.get("num_spec_steps", 0),
        stats.get("num_accepted_draft_tokens", 0),
        usage.get("prompt_tokens", 0),
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        stats.get("drafter", "of the server"),
        stats.get("tokens_by_source", {}),
        stats.get("rescues", 0),
    )


def _refusal(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"The server answered {reply.status_code}: check --url."
