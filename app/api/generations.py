"""The generations of one HTTP request: their events come on the worker thread and are awaited on the event loop."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Sequence

from app.api.errors import timed_out
from app.engine.errors import EngineClosed
from app.engine.events import Delta, Event, Failed, Finished
from app.engine.interface import EngineInterface, GenerationHandle
from app.engine.request import GenerationRequest
from app.metrics import Metrics


class Generations:
    """All or none: when one cannot be queued, or fails, or the client leaves, all are cancelled."""

    def __init__(self, metrics: Metrics, timeout: float | None = None) -> None:
        """timeout: seconds from now until the request fails. Make it on the event loop that will await the events."""
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._deadline = None if timeout is None else self._loop.time() + timeout
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._handles: list[GenerationHandle] = []
        self._cancelled = False
        self._lock = threading.Lock()
        self.open = 0  # generations whose last event was not awaited yet

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
        """Drop what still runs; idempotent, from any thread."""
        with self._lock:
            self._cancelled = True
            handles = list(self._handles)
        for handle in handles:
            handle.cancel()

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
        if not self._events.empty():
            return self._events.get_nowait()
        until = None if silence is None else self._loop.time() + silence
        if self._deadline is not None and (until is None or self._deadline < until):
            until = self._deadline
        try:
            async with asyncio.timeout_at(until):
                return await self._events.get()
        except TimeoutError:
            if self._timeout is not None and until == self._deadline:
                raise timed_out(self._timeout) from None
            return None

    def _deliver(self, index: int, event: Event) -> None:
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, (index, event))
        except RuntimeError:  # the loop is closed: nobody waits any more
            self.cancel()
