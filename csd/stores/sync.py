"""Keeps a memory and a store in step, in a thread of its own: serving never waits for a store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeVar

from csd.stores.base import Batch, ErrorKind, Increment, Store, StoreError, StoreMisfit, StoreUnavailable, batches_of

logger = logging.getLogger(__name__)

T = TypeVar("T")
State = Literal["ok", "degraded", "off"]

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0  # seconds between attempts, doubled after each that fails
MISFIT_PAUSE = 30.0  # seconds; someone has to act first
LOAD_SHARE = 20  # a refresh that took t seconds is followed by the next after 20 t at the earliest: large tables cost time
ANSWERED = {"full", "readonly"}  # the store said that it did not apply the batch, and can still be read


class Memory(Protocol):
    """What is needed of a correction memory."""

    def drain(self) -> Sequence[Increment]:
        """Take what was recorded since the last call."""

    def replace(self, entries: Iterable[Increment], in_flight: Iterable[Increment] | None = None) -> None:
        """Take over a table; in_flight: drained, but not in the table."""

    def clear(self) -> None: ...


class StoreSync:
    """Every `interval` seconds: send what was recorded, batch by batch until acknowledged, then take over what others sent.

    A batch is sent again unchanged, under its id, until the store acknowledges it: nothing is lost or counted twice. Without a
    store (None) the state is "off" and nothing happens. All methods but `round` may be called from any thread.
    """

    def __init__(
        self, memory: Memory, store: Store | None, *, interval: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.memory = memory
        self.store = store
        self.interval = interval
        self.errors: Counter[ErrorKind] = Counter()  # failed rounds by kind
        self.acknowledged = 0  # increments the store has confirmed
        self.last_error: str | None = None  # of the last round, if it failed; holds no secret
        self._clock = clock
        self._state: State = "off" if store is None else "degraded"
        self._unacknowledged: deque[Batch] = deque()
        self._known: int | None = None  # the version the memory has taken over; None: none yet
        self._behind = False  # the store is known to hold more than that version, or something else
        self._refresh_at = clock()
        self._failures = 0  # rounds in a row
        self._begun = self._ended = self._succeeded = 0  # numbers of the last round that did
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

    @property
    def unacknowledged(self) -> int:
        """Increments sent or about to be, without an answer yet; what the memory holds back is not among them."""
        return sum(len(batch.increments) for batch in tuple(self._unacknowledged))

    def flush(self, timeout: float = 0.0) -> bool:
        """Exchange now; True when the store acknowledged all that was recorded before this call, within `timeout` seconds.

        With timeout 0 it only gives the hint, which a store that just failed is spared.
        """
        if self.store is None:
            return True
        return self._await_round(timeout, hopeful=True)

    def call(self, work: Callable[[Store], Coroutine[Any, Any, T]], timeout: float = 5.0) -> T:
        """Use the store between two rounds; the next takes its table over. Raises StoreError, also where it is off or takes
        longer."""
        if self.store is None or self._loop is None or not self._thread.is_alive():
            raise StoreUnavailable("there is no store; name one with the setting `store`", "off")
        future = asyncio.run_coroutine_threadsafe(self._in_turn(self._used(work(self.store))), self._loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise StoreUnavailable(f"{self.store.name} did not answer within {timeout} s", "timeout") from None

    def clear(self, timeout: float = 5.0) -> None:
        """Empty store and memory, what is on its way included. StoreError: the memory keeps what it has."""
        if self.store is None:
            self.memory.clear()
            return
        self.call(self._clear, timeout)

    def close(self, timeout: float = 2.0) -> bool:
        """Send what is left and stop, within `timeout` seconds; True when the store acknowledged everything.

        A store that fails now is not waited for.
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
        """Wait for a round that began after this call and succeeded; not hopeful: or ended in any way."""
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
        self._refresh_at = self._clock()  # who changed the table sees it, however dear the last refresh was
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
        """What failed before goes first. Nothing is drained while it fails, so what waits stays within the memory's bound."""
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
                self._known = version  # the only change since is this batch, and the memory has it
            else:
                self._behind = True

    async def _refresh(self) -> None:
        """Take over the store's table when others changed it, or when it was lost: then the memory starts anew with it."""
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
        if text != self.last_error:  # once for each trouble, not for each attempt
            expected = isinstance(error, StoreError)
            logger.warning("nothing is learned from or kept in the store: %s", text, exc_info=None if expected else error)
        self._state, self.last_error = "degraded", text
        if isinstance(error, StoreMisfit):
            return MISFIT_PAUSE
        return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._failures - 1, 10)))
