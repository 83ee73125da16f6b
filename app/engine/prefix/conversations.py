"""What is kept of conversations between their turns: bounded in number, in bytes and in idle time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from app.engine.prefill import Kept
from racer.drafter import Drafter


@dataclass(slots=True)
class _Entry:
    kept: Kept
    since: float
    nbytes: int


class Conversations:
    """State by tenant and name; the least recently used leaves first. Used by the worker thread alone, but for the counts."""

    def __init__(self, most: int, most_bytes: int, idle: float, clock: Callable[[], float] = time.monotonic) -> None:
        """most: conversations. most_bytes: of all together. idle: seconds until one that nobody continues leaves."""
        self.most = most
        self.most_bytes = most_bytes
        self.idle = idle
        self.rows = 0
        self.nbytes = 0
        self._clock = clock
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def drafters(self) -> list[Drafter]:
        return [entry.kept.drafter for entry in tuple(self._entries.values())]

    def take(self, tenant: str, name: str) -> Kept | None:
        """Remove and return what is kept under a name. A turn that runs at the same time finds nothing."""
        entry = self._entries.pop((tenant, name), None)
        return None if entry is None else self._left(entry)

    def takes(self, nbytes: int) -> bool:
        """Whether one conversation of so many bytes could be kept at all."""
        return self.most > 0 and nbytes <= self.most_bytes

    def keep(self, tenant: str, name: str, kept: Kept) -> None:
        """Put it under a name, in place of what is there; one that is too large by itself is dropped."""
        self.take(tenant, name)
        nbytes = kept.nbytes
        if not self.takes(nbytes):
            return
        self._entries[tenant, name] = _Entry(kept, self._clock(), nbytes)
        self.rows += kept.rows
        self.nbytes += nbytes
        while len(self._entries) > self.most or self.nbytes > self.most_bytes:
            self._drop_oldest()

    def make_room(self, rows: int) -> None:
        """Drop the least recently used ones until they hold so many rows of KV less, or none is left."""
        until = self.rows - rows
        while self._entries and self.rows > until:
            self._drop_oldest()

    def expire(self) -> None:
        """Drop those that have been idle for too long."""
        oldest = self._clock() - self.idle
        while self._entries and next(iter(self._entries.values())).since <= oldest:
            self._drop_oldest()

    def clear(self) -> None:
        self._entries.clear()
        self.rows = self.nbytes = 0

    def _drop_oldest(self) -> None:
        _, entry = self._entries.popitem(last=False)
        self._left(entry)

    def _left(self, entry: _Entry) -> Kept:
        self.rows -= entry.kept.rows
        self.nbytes -= entry.nbytes
        return entry.kept
