"""A store driven without await, one that fails on demand, and a memory that only adds."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from csd.memory import Increment
from csd.stores.base import Batch, Snapshot, Store, StoreUnavailable
from csd.stores.url import open_store

FINGERPRINT = "0123abcd"


def store_at(url: str, fingerprint: str = FINGERPRINT, **limits: int) -> Store:
    store = open_store(url, fingerprint, **limits)
    assert store is not None
    return store


class Driven:
    """A store and its own loop."""

    def __init__(self, url: str, fingerprint: str = FINGERPRINT, **limits: int) -> None:
        self.store = store_at(url, fingerprint, **limits)
        self.loop = asyncio.new_event_loop()

    def open(self) -> None:
        self.loop.run_until_complete(self.store.open())

    def apply(self, batch: Batch) -> int:
        return self.loop.run_until_complete(self.store.apply(batch))

    def add(self, *increments: Increment) -> int:
        return self.apply(Batch(increments))

    def version(self) -> int:
        return self.loop.run_until_complete(self.store.version())

    def load(self) -> Snapshot:
        return self.loop.run_until_complete(self.store.load())

    def counts(self) -> dict[tuple[int, int], float]:
        return {(draft, target): count for draft, target, count in self.load().entries}

    def replace(self, *entries: Increment) -> None:
        self.loop.run_until_complete(self.store.replace(entries))

    def clear(self) -> None:
        self.loop.run_until_complete(self.store.clear())

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.run_until_complete(self.store.close())
            self.loop.close()


class AddingMemory:
    """The least a memory has to do."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, int]] = Counter()
        self._pending: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()

    def record(self, draft: int, target: int, times: int = 1) -> None:
        with self._lock:
            self.counts[draft, target] += times
            self._pending[draft, target] += times

    def drain(self) -> list[Increment]:
        with self._lock:
            pending, self._pending = self._pending, Counter()
        return [(*pair, float(count)) for pair, count in pending.items()]

    def replace(self, entries: Iterable[Increment], in_flight: Iterable[Increment] | None = None) -> None:
        with self._lock:
            self.counts = Counter(self._pending)
            for draft, target, count in (*entries, *(in_flight or ())):
                self.counts[draft, target] += int(count)

    def clear(self) -> None:
        with self._lock:
            self.counts, self._pending = Counter(), Counter()


class WishedStore:
    """Holds a table and fails as told.

    failing: before anything is done. reply_lost: after a batch was applied. read_only: refuses batches as a full store does.
    """

    name = "wished"

    def __init__(self) -> None:
        self.table: dict[tuple[int, int], float] = {}
        self.seen: list[str] = []
        self.number = 0
        self.failing: Exception | None = None
        self.reply_lost = False
        self.loads = 0
        self.read_only = False

    async def open(self) -> None:
        self._fail()

    async def apply(self, batch: Batch) -> int:
        self._fail()
        if self.read_only:
            raise StoreUnavailable("full", "full")
        if batch.id not in self.seen:
            self.seen.append(batch.id)
            self.write(batch)
        if self.reply_lost:
            raise StoreUnavailable("away", "connection")
        return self.number

    def write(self, batch: Batch) -> None:
        self.number = self.number + 1 if self.number else 1000
        for draft, target, count in batch.increments:
            self.table[draft, target] = self.table.get((draft, target), 0.0) + count

    async def version(self) -> int:
        self._fail()
        return self.number

    async def load(self) -> Snapshot:
        self._fail()
        self.loads += 1
        return Snapshot(self.number, [(*pair, count) for pair, count in self.table.items()])

    async def replace(self, entries: Sequence[Increment]) -> None:
        self._fail()
        self.table = {(draft, target): count for draft, target, count in entries}
        self.number += 1

    async def clear(self) -> None:
        self._fail()
        self.table.clear()
        self.number += 1

    async def close(self) -> None:
        return

    def _fail(self) -> None:
        if self.failing:
            raise self.failing
