"""Answers as server-sent events.

fastapi.sse lacks what this adds: refusals before the first byte, cancelling when the client leaves, a failure as a last
event, keep-alive comments that no client takes for an event, and long frames serialized on a thread.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.disconnect import run_until_gone
from app.api.errors import ApiError, as_api_error
from app.api.generations import Generations
from app.api.json_text import dump, dump_large
from app.api.replies import LARGE, ROLE_DELTA, Reply, calls_delta, metrics_of, size_of, thought_delta
from app.api.schemas import UsageChunks
from app.engine.errors import EngineError
from app.engine.events import Delta, Finished
from app.text.errors import GrammarError

Result = TypeVar("Result")
OnThread = Callable[[Callable[[], Result], int], Awaitable[Result]]  # the second argument: entries that are written
Write = Callable[[dict[str, Any]], bytes]
logger = logging.getLogger(__name__)

# A comment line without a blank line after it: some clients take the blank line for an event without data.
KEEP_ALIVE = b": keep-alive\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
    "Connection": "close",  # the end of the connection is the end of the stream, also after a failure
}


class EventStream(Response):
    """Sends frames as they come; the headers leave before the first frame is ready."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        """on_end: called when the stream ends for any reason, maybe more than once."""
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
    on_thread: OnThread[list[bytes]],
    *,
    keep_alive_after: float,
    usage: UsageChunks,
) -> AsyncIterator[bytes]:
    """All frames of one stream. A failure becomes a last frame with an error object.

    keep_alive_after: seconds of silence before a comment is sent. on_thread: runs the serialization of a long frame.
    """
    try:
        chunks = _Chunks(reply, usage)
        while generations.open:
            item = await generations.next(keep_alive_after)
            if item is None:
                yield KEEP_ALIVE
                continue
            write = functools.partial(_frames, chunks, *item, last=generations.open == 0)
            entries = size_of(item[1])
            for frame in write(dump) if entries <= LARGE else await on_thread(functools.partial(write, dump_large), entries):
                yield frame
        if usage != "none":
            yield _frame(reply.chunk([], usage=reply.usage(chunks.ends)))
        yield DONE
    except Exception as error:
        if not isinstance(error, EngineError | ApiError | GrammarError):
            logger.error("a stream failed", exc_info=error)
        yield _frame(as_api_error(error).body())


class _Chunks:
    """Turns events into chunks: the role first, and no empty chunk except the one that ends a choice."""

    def __init__(self, reply: Reply, usage: UsageChunks) -> None:
        self._reply = reply
        self._usage = usage
        self._choices = reply.choices()
        self._opened: set[int] = set()
        self.ends: list[Finished] = []

    def of(self, index: int, event: Delta | Finished, *, last: bool) -> list[dict[str, Any]]:
        """last: the event ends the last open choice; its chunk carries the metrics of all choices."""
        reply, choice = self._reply, self._choices[index]
        chunks = [] if index in self._opened or not reply.kind.opens_with_role else [self._chunk(index, ROLE_DELTA)]
        self._opened.add(index)
        choice.add(event)
        thought, text = choice.take()
        parts = [*([thought_delta(thought)] if thought else []), *([reply.kind.part(text)] if text else [])]
        if not isinstance(event, Finished):
            # details go with the first part, so that a client has them before the text
            return chunks + [
                self._chunk(index, part, {} if place else choice.details.take(tree=True)) for place, part in enumerate(parts)
            ]
        self.ends.append(event)
        if choice.calls:
            parts.append(calls_delta(choice.calls))
        # the finish reason goes with the last part if that is content
        final = parts.pop() if parts and text and not choice.calls else reply.kind.part("")
        chunks += [self._chunk(index, part) for part in parts]
        last_choice = reply.choice(index, final, event, choice.finish_reason) | choice.details.take(tree=True)
        extra = {"metrics": metrics_of(self.ends), **reply.remarks} if last else {}
        return [*chunks, reply.chunk([last_choice], **self._so_far(), **extra)]

    def _chunk(self, index: int, part: dict[str, Any], details: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._reply.chunk([self._reply.choice(index, part) | dict(details or {})], **self._so_far())

    def _so_far(self) -> dict[str, Any]:
        """The `usage` member of a chunk."""
        if self._usage == "none":
            return {}
        return {"usage": self._reply.usage_so_far(self._choices) if self._usage == "each" else None}


def _frames(chunks: _Chunks, index: int, event: Delta | Finished, write: Write, *, last: bool) -> list[bytes]:
    return [_frame(chunk, write) for chunk in chunks.of(index, event, last=last)]


def _frame(body: dict[str, Any], write: Write = dump) -> bytes:
    return b"data: " + write(body) + b"\n\n"
