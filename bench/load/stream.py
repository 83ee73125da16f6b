"""One streamed answer as its client sees it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
from httpx_sse import EventSource, SSEError

DONE = "[DONE]"


class StreamError(Exception):
    """A stream that did not end well. kind: closed set of names for counting."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


async def payloads(reply: httpx.Response) -> AsyncIterator[str]:
    """The data of a reply's server-sent events. Raises StreamError for another kind of reply."""
    try:
        async for event in EventSource(reply).aiter_sse():
            yield event.data
    except SSEError as error:
        raise StreamError("bad_frame", "the reply is not an event stream") from error


class StreamReader:
    """Takes the payloads of one answer with the time each came at, in seconds on any clock."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._pieces: list[str] = []
        self._done = False
        self.first: float | None = None  # time of the first text, or of the end of an answer without any
        self.last = started  # time of the last text, or of the end
        self.longest_pause = 0.0  # seconds between two pieces of text
        self.usage: dict[str, Any] = {}
        self.speculation: dict[str, Any] = {}

    def take(self, payload: str, at: float) -> None:
        """Raises StreamError for a frame that says that the answer failed, or says nothing."""
        if payload == DONE:
            self._done = True
            return
        try:
            frame: Any = json.loads(payload)
            if "error" in frame:
                raise StreamError(f"stream_{frame['error'].get('code') or 'error'}", str(frame["error"].get("message")))
            self.usage = frame.get("usage") or self.usage
            self.speculation = (frame.get("metrics") or {}).get("speculative_decoding") or self.speculation
            for choice in frame["choices"]:
                text = choice["text"] if "text" in choice else choice["delta"].get("content")
                if text or choice.get("finish_reason"):
                    self._progress(text or "", at)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StreamError("bad_frame", "a frame of the stream is not a chunk of an answer") from error

    def finish(self) -> None:
        """The stream is over. Raises StreamError where something is missing."""
        if not self._done:
            raise StreamError("cut_off", "the connection ended before [DONE]")
        if self.first is None or "completion_tokens" not in self.usage:
            raise StreamError("no_usage", "the stream had no usage chunk, so its tokens cannot be counted")

    @property
    def text(self) -> str:
        """All that came so far; several choices are joined as they came."""
        return "".join(self._pieces)

    @property
    def digest(self) -> str:
        """Of the text so far: equal texts have equal ones."""
        return hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest()[:16]

    def _progress(self, text: str, at: float) -> None:
        if self.first is None:
            self.first = at
        else:
            self.longest_pause = max(self.longest_pause, at - self.last)
        self.last = at
        self._pieces.append(text)
