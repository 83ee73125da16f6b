"""The Online Correction Memory (OCM): how often the target preferred one token where another had been drafted."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

Entry = tuple[int, int, float]  # draft, target, count
Increment = Entry  # a count to add to one pair of a store's table
Table = dict[int, float]  # counts; the key is draft << 32 | target

MAX_ID = 2**31 - 1
MAX_COUNT = 2.0**53  # above this a float can no longer be increased by one
SMALLEST_UNIT = 2.0**-64  # below this unit the stored counts are rescaled to a unit of 1
NEGLIGIBLE = 2.0**-20  # rescaling drops decayed counts up to this
DEFAULT_MAX_ENTRIES = 200_000
EQUAL = "draft and target must be two different tokens"


def fault(draft: object, target: object, count: object) -> str | None:
    """Why an entry from outside is invalid, without repeating its content; None for a valid one."""
    for name, token in (("draft", draft), ("target", target)):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= MAX_ID:
            return f"{name} must be a whole number from 0 to {MAX_ID}"
    if not isinstance(count, int | float) or isinstance(count, bool) or not 0 < count <= MAX_COUNT:
        return f"count must be a positive number, {MAX_COUNT:.0f} at most"
    return None


def _add(table: Table, entries: Iterable[Entry]) -> None:
    for draft, target, count in entries:
        found = fault(draft, target, count) or (EQUAL if draft == target else None)
        if found:
            raise ValueError(found)
        key = draft << 32 | target
        table[key] = min(table.get(key, 0.0) + count, MAX_COUNT)


def _keep_most_frequent(table: Table, keep: int) -> None:
    """Drop the least frequent in place until `keep` are left; of equal counts the older entry goes first."""
    surplus = len(table) - keep
    if surplus <= 0:
        return
    order = np.argsort(np.fromiter(table.values(), np.float64, len(table)), kind="stable")[:surplus]
    keys = np.fromiter(table, np.int64, len(table))
    for key in keys[order].tolist():
        del table[key]


class CorrectionMemory:
    """Counts of (draft token, target token) pairs in any context: bounded, decaying, with the increments no store has yet.

    Lookups take no lock; every change does. Counts are stored divided by `unit`. After each half_life recorded divergences the
    unit halves, which halves all counts exactly without touching any entry.
    """

    def __init__(self, max_entries: int = DEFAULT_MAX_ENTRIES, half_life: float | None = None) -> None:
        """max_entries: limit of pairs held, and of pairs waiting for a store. half_life: in recorded divergences, 1 or more.

        Raises ValueError, which names the field.
        """
        if max_entries < 1:
            raise ValueError("max_entries must be at least 1")
        if half_life is not None and not 1 <= half_life < math.inf:
            raise ValueError("half_life must be a finite number of at least 1, or None")
        self.max_entries = max_entries
        self.half_life = half_life
        self.recorded = 0  # divergences since the start; the store acknowledges as many in the end
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
        """Above the bound, drop a tenth of the table, the least frequent pairs, so that one sort serves many insertions."""
        if len(table) > self.max_entries:
            _keep_most_frequent(table, self.max_entries - self.max_entries // 10)

    def drain(self) -> list[Increment]:
        """What was recorded since the last drain, oldest pair first. The caller keeps it until a store has acknowledged it."""
        with self._lock:
            pending, self._pending = self._pending, {}
        return [(key >> 32, key & MAX_ID, count) for key, count in pending.items()]

    def replace(self, entries: Iterable[Entry], in_flight: Iterable[Increment] | None = None) -> None:
        """Take over a store's snapshot and keep what this memory recorded that is not in it.

        The new counts are entries + in_flight + what was recorded since the last drain. in_flight: drained increments that the
        snapshot does not contain. Stores hold counts without decay, so decay starts again from the snapshot. Raises ValueError
        for an invalid entry and then changes nothing.
        """
        table: Table = {}
        _add(table, chain(entries, in_flight or ()))
        with self._lock:
            for key, count in self._pending.items():
                table[key] = min(table.get(key, 0.0) + count, MAX_COUNT)
            self._install(table, 1.0)
            self._recorded = 0.0

    def merge(self, entries: Iterable[Entry]) -> None:
        """Add counts from elsewhere; the caller stores them. Raises ValueError for an invalid entry, before any change."""
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

    def clear(self) -> None:
        """Forget everything, also what no store has yet."""
        with self._lock:
            self._pending = {}
            self._recorded = 0.0
            self._view = ({}, 1.0)

    def entries(self) -> Iterator[Entry]:
        """A snapshot, most frequent first; pairs of equal count by draft, then target."""
        with self._lock:
            pairs, unit = self._view
            items = list(pairs.items())
        items.sort(key=lambda item: (-item[1], item[0]))
        return ((key >> 32, key & MAX_ID, value * unit) for key, value in items)

    def __len__(self) -> int:
        """Number of pairs held."""
        return len(self._view[0])
