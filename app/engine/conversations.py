"""What is kept of conversations between their turns: bounded in number, in rows of KV and in idle time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from app.engine.prompts import Kept
from racer.drafter import Drafter


@dataclass(slots=True)
class _Entry:
    kept: Kept
    since: float


class Conversations:
    """State by tenant and name; the least recently used leaves first. Used by the worker thread alone, but for the counts."""

    def __init__(self, most: int, most_rows: int, idle: float, clock: Callable[[], float] = time.monotonic) -> None:
        """most: conversations. most_rows: rows of KV of all together. idle: seconds until one that nobody continues leaves."""
        self.most = most
        self.most_rows = most_rows
        self.idle = idle
        self.rows = 0
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
        if entry is None:
            return None
        self.rows -= entry.kept.rows
        return entry.kept

    def keep(self, tenant: str, name: str, kept: Kept) -> None:
        """Put it under a name, in place of what is there; one that is too large by itself is dropped."""
        self.take(tenant, name)
        if self.most == 0 or kept.rows > self.most_rows:
            return
        self._entries[tenant, name] = _Entry(kept, self._clock())
        self.rows += kept.rows
        while len(self._entries) > self.most or self.rows > self.most_rows:
            self._drop_oldest()

    def make_room(self, rows: int) -> None:
        """Drop the least recently used ones until so many rows are free, or none is left."""
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
        self.rows = 0

    def _drop_oldest(self) -> None:
        _, entry = self._entries.popitem(last=False)
        self.rows -= entry.kept.rows
