"""Synchronises a memory with its store in a background thread, so that serving never waits for the store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeVar

from csd.memory import Increment
from csd.stores.base import Batch, ErrorKind, Store, StoreError, StoreMisfit, StoreUnavailable, batches_of

logger = logging.getLogger(__name__)

T = TypeVar("T")
State = Literal["ok", "degraded", "off"]

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0  # seconds between attempts; doubled after each failure
MISFIT_PAUSE = 30.0  # seconds, after an error that someone has to fix
LOAD_SHARE = 20  # after a refresh of t seconds the next one waits at least 20 t, since large tables take long
ANSWERED = {"full", "readonly"}  # the store refused the batch but can still be read


class Memory(Protocol):
    """The part of a correction memory used here."""

    def drain(self) -> Sequence[Increment]:
        """Return what was recorded since the last call."""

    def replace(self, entries: Iterable[Increment], in_flight: Iterable[Increment] | None = None) -> None:
        """Take over a table. in_flight: drained increments that are not in it."""

    def clear(self) -> None: ...


class StoreSync:
    """Every `interval` seconds: send what was recorded in batches, then take over what others sent.

    A batch is sent again unchanged, with its id, until the store acknowledges it, so nothing is lost or counted twice. Without
    a store (None) the state is "off" and nothing happens. All methods but `round` may be called from any thread.
    """

    def __init__(
        self, memory: Memory, store: Store | None, *, interval: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.memory = memory
        self.store = store
        self.interval = interval
        self.errors: Counter[ErrorKind] = Counter()  # failed rounds by kind
        self.acknowledged = 0  # increments the store has confirmed
        self.last_error: str | None = None  # of the last round, if it failed; contains no secret
        self._clock = clock
        self._state: State = "off" if store is None else "degraded"
        self._unacknowledged: deque[Batch] = deque()
        self._known: int | None = None  # version of the table that the memory took over last; None before the first
        self._behind = False  # the store is known to have changed since that version
        self._refresh_at = clock()
        self._failures = 0  # rounds in a row
        self._begun = self._ended = self._succeeded = 0  # number of the last round that began, ended, succeeded
        self._progress = threading.Condition()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        self._thread = threading.Thread(target=self._run, name="racer-store", daemon=True)

    # -- called from any thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.store is not None:
            self._thread.start()
            self._ready.wait()

    @property
    def state(self) -> State:
        return self._state

    def flush(self, timeout: float = 0.0) -> bool:
        """Synchronise now. True if the store acknowledges all that was recorded before this call within `timeout` seconds.

        With timeout 0 it only starts a round and does not wait; if the last round failed, it does nothing.
        """
        if self.store is None:
            return True
        return self._await_round(timeout, hopeful=True)

    def call(self, work: Callable[[Store], Coroutine[Any, Any, T]], timeout: float = 5.0) -> T:
        """Use the store between two rounds; the next round takes its table over. Raises StoreError, also without a store and
        after `timeout` seconds."""
        if self.store is None or self._loop is None or not self._thread.is_alive():
            raise StoreUnavailable("there is no store; name one with the setting `store`", "off")
        future = asyncio.run_coroutine_threadsafe(self._in_turn(self._used(work(self.store))), self._loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise StoreUnavailable(f"{self.store.name} did not answer within {timeout} s", "timeout") from None

    def clear(self, timeout: float = 5.0) -> None:
        """Empty store and memory, and drop unsent batches. On a StoreError the memory keeps its entries."""
        if self.store is None:
            self.memory.clear()
            return
        self.call(self._clear, timeout)

    def close(self, timeout: float = 2.0) -> bool:
        """Send what is left and stop within `timeout` seconds. True if the store acknowledged everything.

        If the store fails now, there is no second attempt.
        """
        if self.store is None or not self._thread.is_alive():
            return self.store is None
        deadline = time.monotonic() + timeout
        flushed = self._await_round(timeout, hopeful=False)
        self._stopping = True
        self._kick()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if not flushed:
            logger.warning("%s: closed before it acknowledged everything", self.store.name)
        return flushed

    def _await_round(self, timeout: float, *, hopeful: bool) -> bool:
        """Wait for a round that begins after this call. hopeful: wait until one succeeds; otherwise until one ends."""
        deadline = time.monotonic() + timeout
        with self._progress:
            number = self._begun + 1
            if timeout > 0 or self._failures == 0:
                self._kick()
            while self._succeeded < number and (hopeful or self._ended < number):
                if not self._thread.is_alive() or not self._progress.wait(max(0.0, deadline - time.monotonic())):
                    break
            return self._succeeded >= number

    def _kick(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake.set)

    # -- the store's thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._rounds())
        finally:
            self._state = "off"
            with self._progress:
                self._progress.notify_all()

    async def _rounds(self) -> None:
        assert self.store is not None
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        while not self._stopping:
            pause = await self.round()
            if not self._stopping:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)
            self._wake.clear()
        await self.store.close()

    async def round(self) -> float:
        """One exchange with the store. Returns the seconds to wait until the next; never raises."""
        with self._progress:
            self._begun += 1
            number = self._begun
        try:
            await self._in_turn(self._exchange())
        except Exception as error:
            pause = self._failed(error)
        else:
            self._worked()
            pause = self.interval
        with self._progress:
            self._ended = number
            if self._failures == 0:
                self._succeeded = number
            self._progress.notify_all()
        return pause

    async def _in_turn(self, work: Awaitable[T]) -> T:
        async with self._turn:
            return await work

    async def _used(self, work: Awaitable[T]) -> T:
        result = await work
        self._refresh_at = self._clock()  # do not delay the next refresh: it shows the change just made
        return result

    async def _exchange(self) -> None:
        assert self.store is not None
        if self._failures or self._known is None:
            await self.store.open()
        try:
            await self._send()
        except StoreError as error:
            if error.kind in ANSWERED:
                await self._refresh()
            raise
        await self._refresh()

    async def _send(self) -> None:
        """Send unacknowledged batches, then drain the memory once.

        Nothing is drained while the store fails, so the backlog stays within the memory's bound.
        """
        assert self.store is not None
        fresh = False
        while self._unacknowledged or not fresh:
            if not self._unacknowledged:
                self._unacknowledged.extend(batches_of(self.memory.drain()))
                fresh = True
                continue
            batch = self._unacknowledged[0]
            version = await self.store.apply(batch)
            self._unacknowledged.popleft()
            self.acknowledged += len(batch.increments)
            if self._known is not None and version == self._known + 1:
                self._known = version  # this batch is the only change since, and the memory already counts it
            else:
                self._behind = True

    async def _refresh(self) -> None:
        """Take over the store's table if others changed it, or if it was lost and started again."""
        assert self.store is not None
        version = await self.store.version()
        current = version == self._known and not self._behind
        if current or (version and self._known is not None and self._clock() < self._refresh_at):
            return
        if self._known is not None and version < self._known:
            logger.warning("%s: the table was lost there; starting anew from what it holds", self.store.name)
        started = self._clock()
        snapshot = await self.store.load()
        unsent = [increment for batch in self._unacknowledged for increment in batch.increments]
        self.memory.replace(snapshot.entries, unsent)
        self._known, self._behind = snapshot.version, False
        now = self._clock()
        self._refresh_at = now + LOAD_SHARE * (now - started)

    async def _clear(self, store: Store) -> None:
        await store.clear()
        self._unacknowledged.clear()
        self.memory.clear()
        self._known = None

    def _worked(self) -> None:
        assert self.store is not None
        if self._state == "degraded":
            logger.info("%s: in use", self.store.name)
        self._state, self._failures, self.last_error = "ok", 0, None

    def _failed(self, error: Exception) -> float:
        assert self.store is not None
        self._failures += 1
        kind: ErrorKind = "internal"
        text = type(error).__name__
        if isinstance(error, StoreError):
            kind, text = error.kind, str(error)
        self.errors[kind] += 1
        if text != self.last_error:  # log each problem once, not at each attempt
            expected = isinstance(error, StoreError)
            logger.warning("nothing is learned from or kept in the store: %s", text, exc_info=None if expected else error)
        self._state, self.last_error = "degraded", text
        if isinstance(error, StoreMisfit):
            return MISFIT_PAUSE
        return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._failures - 1, 10)))
