"""Compiled grammars that are kept: those used last, within a number and a bound in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Kept = TypeVar("Kept")


class GrammarCache(Generic[Kept]):
    """Source of a grammar -> what was made of it. Thread-safe."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._entries: OrderedDict[str, tuple[Kept, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, source: str) -> Kept | None:
        with self._lock:
            if source not in self._entries:
                return None
            self._entries.move_to_end(source)
            return self._entries[source][0]

    def keep(self, source: str, made: Kept, nbytes: int) -> None:
        """nbytes: of what was made; the source counts as well."""
        nbytes += len(source)
        with self._lock:
            if source in self._entries:  # made by two threads at once
                self.nbytes -= self._entries.pop(source)[1]
            self._entries[source] = made, nbytes
            self.nbytes += nbytes
            while len(self._entries) > self._most or self.nbytes > self._most_bytes:
                self.nbytes -= self._entries.popitem(last=False)[1][1]
