"""Divergences found by calibration: where target and draft chose differently, how often, and how far apart the logits were."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from csd.memory import Entry

FREQUENT = 0.2  # the share of pairs that the paper calls frequent


@dataclass(frozen=True, slots=True)
class Event:
    """One divergence: the draft's token, the target's, and z(draft) - z(target) on the target's raw logits (at most 0
    where the target chose greedily)."""

    draft: int
    target: int
    gap: float


@dataclass(slots=True)
class PairRecord:
    """The divergences of one pair: how many, and the least, mean and greatest gap."""

    count: int = 0
    total: float = 0.0
    least: float = math.inf
    greatest: float = -math.inf

    def add(self, gap: float) -> None:
        self.count += 1
        self.total += gap
        self.least = min(self.least, gap)
        self.greatest = max(self.greatest, gap)

    @property
    def mean(self) -> float:
        return self.total / self.count


@dataclass(slots=True)
class Divergences:
    """The pairs that diverged, over `positions` compared positions."""

    positions: int = 0
    pairs: dict[tuple[int, int], PairRecord] = field(default_factory=dict)

    def add(self, events: Iterable[Event], positions: int) -> None:
        """Add the divergences of a text of which `positions` positions were compared."""
        for event in events:
            self.pairs.setdefault((event.draft, event.target), PairRecord()).add(event.gap)
        self.positions += positions

    @property
    def events(self) -> int:
        return sum(record.count for record in self.pairs.values())

    def entries(self) -> list[tuple[int, int, float]]:
        """(draft, target, count), most frequent first; pairs of equal count by their ids."""
        ordered = sorted(self.pairs.items(), key=lambda item: (-item[1].count, item[0]))
        return [(draft, target, float(record.count)) for (draft, target), record in ordered]

    def frequent_share(self) -> float:
        """Share of all events in the most frequent 20 % of pairs (the paper's first observation: 0.69); 0 without events."""
        counts = [count for _, _, count in self.entries()]
        top = math.ceil(FREQUENT * len(counts))
        return sum(counts[:top]) / sum(counts) if counts else 0.0

    def above(self, threshold: float) -> int:
        """Number of pairs that occurred more than `threshold` times, which the memory would nominate."""
        return sum(record.count > threshold for record in self.pairs.values())


def agreement(left: Sequence[Entry], right: Sequence[Entry], top: int) -> float:
    """Share of the `top` most frequent pairs of one table that are among those of another; 0 if the first is empty.

    left, right: (draft, target, count), most frequent first.
    """
    ours = [entry[:2] for entry in left[:top]]
    theirs = {entry[:2] for entry in right[:top]}
    return sum(pair in theirs for pair in ours) / len(ours) if ours else 0.0
