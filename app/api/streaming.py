"""Answers as server-sent events."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.disconnect import run_until_gone
from app.api.errors import ApiError, as_api_error
from app.api.generations import Generations
from app.api.replies import ROLE_DELTA, Answer, Reply, calls_delta, dump, metrics_of
from app.engine.errors import EngineError
from app.engine.events import Delta, Finished
from app.text.errors import GrammarError

logger = logging.getLogger(__name__)

# A comment without a blank line of its own: some readers take the blank line for the end of an event without data.
KEEP_ALIVE = b": keep-alive\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
    "Connection": "close",  # the end of the connection is the end of the stream, also after a failure
}


class EventStream(Response):
    """Sends frames as they come; the headers leave before the first one is there."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        """on_end: called once or more when the stream is over, whatever ended it."""
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._frames = frames
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await run_until_gone(receive, self._send_all(send), self._on_end)

    async def _send_all(self, send: Send) -> None:
        async for frame in self._frames:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def frames(
    reply: Reply,
    generations: Generations,
    *,
    keep_alive_after: float,
    include_usage: bool,
) -> AsyncIterator[bytes]:
    """All frames of one stream. A failure is one frame with an error object, and the last.

    keep_alive_after: seconds of silence.
    """
    try:
        chunks = _Chunks(reply, include_usage)
        while generations.open:
            item = await generations.next(keep_alive_after)
            if item is None:
                yield KEEP_ALIVE
                continue
            for chunk in chunks.of(*item, last=generations.open == 0):
                yield _frame(chunk)
        if include_usage:
            yield _frame(reply.chunk([], usage=reply.usage(chunks.ends)))
        yield DONE
    except Exception as error:
        if not isinstance(error, EngineError | ApiError | GrammarError):
            logger.error("a stream failed", exc_info=error)
        yield _frame(as_api_error(error).body())


class _Chunks:
    """Turns events into chunks: the role first, no chunk without content but those that carry an end."""

    def __init__(self, reply: Reply, include_usage: bool) -> None:
        self._reply = reply
        self._extra: dict[str, Any] = {"usage": None} if include_usage else {}
        self._answers = reply.answers()
        self._opened: set[int] = set()
        self.ends: list[Finished] = []

    def of(self, index: int, event: Delta | Finished, *, last: bool) -> list[dict[str, Any]]:
        """last: the event ends the last open choice, whose chunk carries the metrics of all."""
        reply, chunks, answer = self._reply, [], self._answers[index]
        if reply.kind.opens_with_role and index not in self._opened:
            self._opened.add(index)
            chunks.append(reply.chunk([reply.choice(index, ROLE_DELTA)], **self._extra))
        if isinstance(event, Finished):
            self.ends.append(event)
            text = _text(answer, event)
            if answer.calls:
                parts = [*([reply.kind.part(text)] if text else []), calls_delta(answer.calls)]
                chunks += [reply.chunk([reply.choice(index, part)], **self._extra) for part in parts]
                text = ""
            choice = reply.choice(index, reply.kind.part(text), event, answer.finish_reason)
            choice |= answer.details.take(tree=True)
            metrics = {"metrics": metrics_of(self.ends)} if last else {}
            chunks.append(reply.chunk([choice], **self._extra, **metrics))
            return chunks
        text = _text(answer, event)
        if text:
            choice = reply.choice(index, reply.kind.part(text)) | answer.details.take(tree=True)
            chunks.append(reply.chunk([choice], **self._extra))
        return chunks


def _text(answer: Answer, event: Delta | Finished) -> str:
    """The text of an event, after the echo where it is the first of its choice; details wait in the answer."""
    answer.add(event)
    text = "".join(answer.texts)
    answer.texts = [""]
    return text


def _frame(body: dict[str, Any]) -> bytes:
    return b"data: " + dump(body) + b"\n\n"
