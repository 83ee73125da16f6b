"""The Online Correction Memory (OCM): how often the target preferred one token where another had been drafted."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

Entry = tuple[int, int, float]  # draft, target, count
Increment = Entry  # what a store has to add to one pair
Table = dict[int, float]  # counts; the key is draft << 32 | target

MAX_ID = 2**31 - 1
MAX_COUNT = 2**53  # up to here a float counts by ones
SMALLEST_UNIT = 2.0**-64  # the table is rescaled when one divergence would be stored as the inverse of this
NEGLIGIBLE = 2.0**-20  # a decayed count that a rescaling forgets
EQUAL = "draft and target must be two different tokens"
BYTES_PER_ENTRY = 32 + 24  # an int key and a float besides the dict's own slot


def fault(draft: object, target: object, count: object) -> str | None:
    """What is wrong with an entry from outside, without its content; None: nothing."""
    for name, token in (("draft", draft), ("target", target)):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= MAX_ID:
            return f"{name} must be a whole number from 0 to {MAX_ID}"
    if not isinstance(count, int | float) or isinstance(count, bool) or not 0 < count <= MAX_COUNT:
        return f"count must be a positive number, {MAX_COUNT} at most"
    return None


def _add(table: Table, entries: Iterable[Entry]) -> None:
    for draft, target, count in entries:
        found = fault(draft, target, count) or (EQUAL if draft == target else None)
        if found:
            raise ValueError(found)
        key = draft << 32 | target
        table[key] = min(table.get(key, 0.0) + count, MAX_COUNT)


def _keep_most_frequent(table: Table, keep: int) -> None:
    """Drop the least frequent in place until `keep` are left; among equals the older entry goes first."""
    surplus = len(table) - keep
    if surplus <= 0:
        return
    order = np.argsort(np.fromiter(table.values(), np.float64, len(table)), kind="stable")[:surplus]
    keys = np.fromiter(table, np.int64, len(table))
    for key in keys[order].tolist():
        del table[key]


class CorrectionMemory:
    """Counts of (draft token, target token), context-free, with their bound, decay and the increments a store still lacks.

    Lookups take no lock; everything that changes the memory does. Counts are stored divided by `unit`, which halves when
    half_life divergences were recorded: all counts halve at once, exactly, and no entry is touched.
    """

    def __init__(self, max_entries: int = 200_000, half_life: float | None = None) -> None:
        """max_entries: most pairs held, and most pairs waiting for a store. half_life: in recorded divergences, 1 or more.

        ValueError names the field.
        """
        if max_entries < 1:
            raise ValueError("max_entries must be at least 1")
        if half_life is not None and not 1 <= half_life < math.inf:
            raise ValueError("half_life must be a finite number of at least 1, or None")
        self.max_entries = max_entries
        self.half_life = half_life
        self.recorded = 0  # divergences ever counted here: what stores acknowledge adds up to it
        self.version = 0  # rises with every change of a count
        self._lock = threading.Lock()
        self._recorded = 0.0  # divergences since the last halving
        self._pending: Table = {}
        self._view: tuple[Table, float] = ({}, 1.0)  # counts, unit: swapped together, so that a reader never mixes two

    def count(self, draft: int, target: int) -> float:
        """Divergences of this pair, decay included. The ids must be Python ints."""
        pairs, unit = self._view
        return pairs.get(draft << 32 | target, 0.0) * unit

    def record(self, draft: int, target: int, times: int = 1) -> None:
        """Count divergences of two different tokens."""
        if times < 1:
            raise ValueError("times must be at least 1")
        if draft == target:
            raise ValueError(EQUAL)
        key = int(draft) << 32 | int(target)
        with self._lock:
            self._diverge(key, times)
            self._pending[key] = self._pending.get(key, 0.0) + times
            self._trim(self._pending)
            self.recorded += times
            self.version += 1

    def _diverge(self, key: int, times: float) -> None:
        half_life = math.inf if self.half_life is None else self.half_life
        while times > 0:
            pairs, unit = self._view
            part = min(times, half_life - self._recorded)
            pairs[key] = pairs.get(key, 0.0) + part / unit
            times -= part
            self._recorded += part
            if self._recorded >= half_life:
                self._halve()
        self._trim(self._view[0])

    def _halve(self) -> None:
        pairs, unit = self._view
        unit *= 0.5
        self._recorded = 0.0
        if unit < SMALLEST_UNIT:
            pairs = {key: value * unit for key, value in pairs.items() if value * unit > NEGLIGIBLE}
            unit = 1.0
        self._view = (pairs, unit)

    def _trim(self, table: Table) -> None:
        """Above the bound the lowest tenth leaves at once, so that one sort serves many insertions."""
        if len(table) > self.max_entries:
            _keep_most_frequent(table, self.max_entries - self.max_entries // 10)

    def drain(self) -> list[Increment]:
        """What was recorded since the last drain, oldest pair first. Until acknowledged, the batch is the caller's to keep."""
        with self._lock:
            pending, self._pending = self._pending, {}
        return [(key >> 32, key & MAX_ID, count) for key, count in pending.items()]

    def restore(self, batch: Iterable[Increment]) -> None:
        """Put a drained batch that no store took back among the pending; the counts hold it already."""
        merged: Table = {}
        _add(merged, batch)
        with self._lock:
            for key, count in self._pending.items():
                merged[key] = merged.get(key, 0.0) + count
            _keep_most_frequent(merged, self.max_entries)
            self._pending = merged

    def replace(self, entries: Iterable[Entry], in_flight: Iterable[Increment] | None = None) -> None:
        """Take over a store's snapshot; what it lacks of our own records stays counted, once.

        The new counts are entries + in_flight + pending. Pending is what was never drained, which no snapshot holds; in_flight
        is a drained batch that the snapshot does not hold. So after an acknowledged batch: replace(snapshot); while a batch
        is under way and the snapshot was read before it: replace(snapshot, batch); after a failed one: restore(batch), then
        replace(snapshot). Stores keep whole counts: decay starts anew from the snapshot. ValueError changes nothing.
        """
        table: Table = {}
        _add(table, chain(entries, in_flight or ()))
        with self._lock:
            for key, count in self._pending.items():
                table[key] = min(table.get(key, 0.0) + count, MAX_COUNT)
            self._install(table, 1.0)
            self._recorded = 0.0

    def merge(self, entries: Iterable[Entry]) -> None:
        """Add counts from elsewhere. They are not pending: whoever brings them tells the store. ValueError changes nothing."""
        table: Table = {}
        _add(table, entries)
        with self._lock:
            pairs, unit = self._view
            for key, count in table.items():
                pairs[key] = min(pairs.get(key, 0.0) + count / unit, MAX_COUNT / unit)
            self._install(pairs, unit)

    def _install(self, table: Table, unit: float) -> None:
        _keep_most_frequent(table, self.max_entries)
        self._view = (table, unit)
        self.version += 1

    def clear(self) -> None:
        """Forget everything, the pending included."""
        with self._lock:
            self._pending = {}
            self._recorded = 0.0
            self._view = ({}, 1.0)
            self.version += 1

    def entries(self) -> Iterator[Entry]:
        """A snapshot, most frequent first, equals by draft, then target."""
        with self._lock:
            pairs, unit = self._view
            items = list(pairs.items())
        items.sort(key=lambda item: (-item[1], item[0]))
        return ((key >> 32, key & MAX_ID, value * unit) for key, value in items)

    def __len__(self) -> int:
        """Divergence pairs held."""
        return len(self._view[0])

    @property
    def pending(self) -> int:
        """Pairs that wait for a store."""
        return len(self._pending)

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory the tables take."""
        tables = (self._view[0], self._pending)
        return sum(sys.getsizeof(table) + len(table) * BYTES_PER_ENTRY for table in tables)
