"""The generations of one HTTP request: events come from the worker thread and are awaited on the event loop."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import Sequence

from app.api.errors import timed_out, unread
from app.engine.errors import EngineClosed
from app.engine.events import Delta, Event, Failed, Finished
from app.engine.interface import EngineInterface, GenerationHandle
from app.engine.request import GenerationRequest
from app.metrics import Metrics

# Approximate bytes of memory
EVENT, CHARACTER, TOKEN, SCORE, ALTERNATIVE, NODE = 400, 2, 48, 96, 150, 100


class Generations:
    """All are cancelled when one cannot be queued or fails, or when the client leaves or stops reading."""

    def __init__(self, metrics: Metrics, timeout: float | None = None, most_bytes: int | None = None) -> None:
        """Call on the event loop that will await the events.

        timeout: seconds from now until the request fails. most_bytes: limit of waiting events, not counting
        the next one; above it they are dropped and the request fails.
        """
        self._metrics = metrics
        self._most_bytes = most_bytes
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._deadline = None if timeout is None else self._loop.time() + timeout
        self._events: deque[tuple[int, Event, int]] = deque()  # index of the generation, event, bytes
        self._bytes = 0
        self._over = False  # later events are ignored
        self._arrived = asyncio.Event()
        self._handles: list[GenerationHandle] = []
        self._cancelled = False
        self._lock = threading.Lock()
        self.open = 0  # generations whose last event has not been returned yet

    def submit(self, engine: EngineInterface, requests: Sequence[GenerationRequest]) -> None:
        """Queue all, from any thread. Raises what the engine raises, with nothing left in its queue."""
        self.open = len(requests)
        try:
            for index, request in enumerate(requests):
                handle = engine.submit(request, functools.partial(self._deliver, index))
                with self._lock:
                    self._handles.append(handle)
                    cancelled = self._cancelled
                if cancelled:  # the client left while this thread was queueing
                    handle.cancel()
                    return
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancel all that still run. Idempotent, from any thread."""
        with self._lock:
            self._cancelled = True
            handles = list(self._handles)
        for handle in handles:
            handle.cancel()

    def fail(self, error: Exception) -> None:
        """End the request with this error once the waiting events are read. From any thread."""
        self.cancel()
        self._deliver(0, Failed(error))

    async def next(self, silence: float | None = None) -> tuple[int, Delta | Finished] | None:
        """The next event and the index of its generation; None after `silence` seconds without one.

        Raises the error of a generation that failed, EngineClosed for one that the server dropped, and ApiError 504.
        """
        item = await self._wait(silence)
        if item is None:
            return None
        index, event = item
        if isinstance(event, Delta):
            return index, event
        self.open -= 1
        if isinstance(event, Failed):
            raise event.error
        if event.reason == "cancelled":  # not by this client: it is still being answered
            raise EngineClosed
        self._metrics.request_stats(event.stats)
        return index, event

    async def _wait(self, silence: float | None) -> tuple[int, Event] | None:
        if self._events:
            return self._pop()
        until = None if silence is None else self._loop.time() + silence
        if self._deadline is not None and (until is None or self._deadline < until):
            until = self._deadline
        self._arrived.clear()
        try:
            async with asyncio.timeout_at(until):
                await self._arrived.wait()
        except TimeoutError:
            if self._timeout is not None and until == self._deadline:
                raise timed_out(self._timeout) from None
            return None
        return self._pop()

    def _pop(self) -> tuple[int, Event]:
        index, event, size = self._events.popleft()
        self._bytes -= size
        return index, event

    def _deliver(self, index: int, event: Event) -> None:
        echoes = isinstance(event, Delta) and event.prompt_logprobs
        size = EVENT if echoes else _bytes_of(event)  # scores of prompts are bounded by admission
        try:
            self._loop.call_soon_threadsafe(self._take_in, index, event, size)
        except RuntimeError:  # the loop is closed
            self.cancel()

    def _take_in(self, index: int, event: Event, size: int) -> None:
        if self._over:
            return
        behind = self._bytes + size - self._events[0][2] if self._events else 0
        if self._most_bytes is not None and behind > self._most_bytes:
            self._over = True
            self.cancel()
            self._metrics.unread_reply("bytes")
            self._events.clear()
            self._bytes = 0
            event, size = Failed(unread()), EVENT
        self._events.append((index, event, size))
        self._bytes += size
        self._arrived.set()


def _bytes_of(event: Event) -> int:
    """Approximate memory of a waiting event."""
    if isinstance(event, Failed):
        return EVENT
    size = EVENT + CHARACTER * len(event.text)
    if isinstance(event, Finished):
        return size
    size += TOKEN * len(event.token_ids)
    if event.tree is not None:
        size += NODE * len(event.tree.tokens)
    for score in (*event.logprobs, *event.prompt_logprobs):
        size += SCORE + (ALTERNATIVE * len(score.top) if score is not None else 0)
    return size
