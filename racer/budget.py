"""The budget: how many nodes are worth verifying, given what a node costs on this machine and what it is likely to bring."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from racer.tree import Float32Array

REBUILD = 16  # observations after which the corrections take effect
SHAPE_SHARE = 0.2  # of a correction: what goes to the shape of the curve near the size, the rest to the machine's speed
PROOF = 24  # steps at a size between two points of the curve that can make it a point of its own
STEEP = 0.1  # by how much, as a logarithm, they must be off the line on average
TEACHING = 0.6  # what a verified row is worth beyond its chance p, as a share of p (1 - p): it refreshes a copy-logit row


class CostCurve:
    """T(n): seconds of a step that verifies n rows, all sessions together.

    Measured at some n and linear in between; beyond the last, the slope of the last piece goes on. It need neither rise nor be
    convex. `observe` refines it, also by steps at sizes that were never measured. Where a forward is padded, all n that are
    padded to the same number cost the same.
    """

    def __init__(self, sizes: Sequence[int], seconds: Sequence[float], computed: Callable[[int], int] | None = None) -> None:
        """computed: rows that a forward of so many computes, padding included; each number itself where it is not given."""
        if len(sizes) < 2 or len(sizes) != len(seconds) or sizes[0] != 1:
            raise ValueError("a cost curve needs the cost of one row and of at least one larger number")
        if any(b <= a for a, b in pairwise(sizes)) or not all(0.0 < each < math.inf for each in seconds):
            raise ValueError("sizes must ascend and seconds be positive and finite")
        self._given = list(sizes), list(seconds)
        self._computed = computed
        padded = dict(zip(map(computed, sizes) if computed else sizes, seconds, strict=True))
        # (sizes, seconds), replaced as one, for onlookers on other threads
        self._points = np.array(list(padded), np.int64), np.array(list(padded.values()), np.float64)
        self._doubts: dict[int, tuple[int, float]] = {}  # size between the points -> steps, sum of how far off it was
        self._paddings = np.zeros(0, np.int64)
        self._table = np.zeros(0)
        self._floors: dict[tuple[int, int, int], float] = {}
        self._observed = 0
        self._speed = 1.0

    @property
    def sizes(self) -> np.ndarray:
        """int64: where the curve has points."""
        return self._points[0]

    @property
    def seconds(self) -> np.ndarray:
        """float64: T(n) there."""
        return self._points[1]

    @property
    def points(self) -> list[tuple[int, float]]:
        """(n, T(n)); may be read from any thread."""
        sizes, seconds = self._points
        return list(zip(sizes.tolist(), seconds.tolist(), strict=True))

    def fresh(self) -> CostCurve:
        """The curve before `observe` corrected anything."""
        return CostCurve(*self._given, self._computed)

    def padded(self, computed: Callable[[int], int]) -> CostCurve:
        """The same, uncorrected, for forwards that are padded so."""
        return CostCurve(*self._given, computed)

    def table(self, most: int) -> np.ndarray:
        """float64 [most + 1]: entry n is T(n); entry 0 is 0."""
        if len(self._table) <= most:
            if len(self._paddings) <= most:
                self._paddings = self._rows(range(most + 1))
            self._table = self._costs(self._paddings[: most + 1])
            self._table[0] = 0.0
        return self._table[: most + 1]

    def at(self, rows: Sequence[int]) -> list[float]:
        """T(n) for these n; for onlookers on other threads, since it keeps nothing."""
        return [float(seconds) for seconds in self._costs(self._rows(rows))]

    def _rows(self, n: Sequence[int]) -> np.ndarray:
        return np.asarray([self._computed(rows) for rows in n] if self._computed else n, np.int64)

    def _costs(self, rows: np.ndarray) -> np.ndarray:
        sizes, seconds = self._points
        costs: np.ndarray = np.interp(rows, sizes, seconds)
        last, before = sizes[-1], sizes[-2]
        slope = max(0.0, (seconds[-1] - seconds[-2]) / (last - before))
        costs[rows > last] = seconds[-1] + slope * (rows[rows > last] - last)
        return costs

    def observe(self, rows: int, seconds: float, weight: float = 0.05) -> None:
        """Let one step that took `seconds` for `rows` rows correct the curve; hiccups over twice the estimate are cut.

        What a step takes more or less than expected is laid to the machine's speed of the moment first, which moves the whole
        curve and no decision; only a fifth of `weight` goes to the shape near `rows`. So sizes that are used often do not look
        dear beside sizes that are not. A size between two points that is off by much again and again becomes a point itself:
        the line was wrong there, as it is across a cliff.
        """
        expected = float(self.table(rows)[rows]) * self._speed
        rows = int(self._paddings[rows])
        if rows > self.sizes[-1]:
            return
        error = math.log(min(seconds, 2.0 * expected) / expected)
        self._speed *= math.exp(weight * error)
        right = int(np.searchsorted(self.sizes, rows))
        local = SHAPE_SHARE * weight * error
        if self.sizes[right] == rows:
            self.seconds[right] *= math.exp(local)
        else:
            left, span = right - 1, float(self.sizes[right] - self.sizes[right - 1])
            share = float(rows - self.sizes[left]) / span
            self.seconds[left] *= math.exp(local * (1.0 - share))
            self.seconds[right] *= math.exp(local * share)
            steps, off = self._doubts.get(rows, (0, 0.0))
            self._doubts[rows] = steps + 1, off + error
        self._observed += 1
        if self._observed % REBUILD == 0:
            self._settle_doubts()
            self._points = self.sizes, self.seconds * self._speed
            self._speed = 1.0
            self._table = np.zeros(0)
            self._floors.clear()

    def _settle_doubts(self) -> None:
        """Make points of the sizes where the line is wrong; those that were seen as often and are right begin again."""
        for rows, (steps, off) in list(self._doubts.items()):
            if steps < PROOF:
                continue
            del self._doubts[rows]
            if abs(off / steps) > STEEP:
                right = int(np.searchsorted(self.sizes, rows))
                found = float(np.interp(rows, self.sizes, self.seconds)) * math.exp(off / steps)
                self._points = np.insert(self.sizes, right, rows), np.insert(self.seconds, right, found)

    def floor(self, sessions: int, most: int, fixed: int = 0) -> float:
        """A node less likely than this never pays: the least cost of one more row, in steps without drafts.

        sessions: how many take part. fixed: rows of theirs that are verified whatever they cost, beyond one each. With rate
        r = tokens a second, a node of worth w (see `worth`) pays while w > r * (cost of the row), and r is at least that of a
        step that takes no other node: sessions / T(sessions + fixed).
        """
        key = (sessions, most, fixed)
        if key not in self._floors:
            costs = self.table(sessions * most + fixed + 1)
            least = float(np.diff(costs[sessions:]).min())
            self._floors[key] = max(0.0, least * sessions / float(costs[sessions + fixed]) / (1.0 + TEACHING))
        return self._floors[key]


def worth(chances: Float32Array) -> Float32Array:
    """Tokens that nodes accepted with these probabilities are worth: p + TEACHING * p * (1 - p), never more than 1.

    A rejected node is not lost, since its row of successors will draft later. Measured: with no such bonus the budget ends a
    few nodes below the best fixed one.
    """
    return chances * (1.0 + TEACHING * (1.0 - chances))


def share_budget(chances: Sequence[Float32Array], curve: CostCurve, fixed: int = 0, beside: float | None = None) -> list[int]:
    """Nodes to verify for each session, roots included.

    chances[s] float32 [n_s]: estimated probability that each node of session s is accepted, root first (1.0), falling, and no
    node likelier than its parent. The nodes of all sessions compete: the k likeliest are taken where expected emitted tokens
    a second, (beside + sessions + sum over nodes) / T(fixed + sessions + k), is largest, a node counting by its `worth`.
    fixed: rows of the sessions beside them, that are verified in any case. beside: tokens that those are expected to emit; a
    token for each row where it is not given, as plain sessions do.
    """
    emitted = float(fixed) if beside is None else beside
    sessions = len(chances)
    drafted = [part[1:] for part in chances]
    likely = np.concatenate(drafted) if drafted else np.zeros(0, np.float32)
    owner = np.concatenate([np.full(len(part), index) for index, part in enumerate(drafted)]) if drafted else np.zeros(0)
    order = np.argsort(-likely, kind="stable")
    expected = emitted + sessions + np.concatenate([[0.0], np.cumsum(worth(likely[order]), dtype=np.float64)])
    costs = curve.table(fixed + sessions + len(likely))[fixed + sessions :]
    taken = order[: int(np.argmax(expected / costs))]
    counts = np.bincount(owner[taken].astype(np.int64), minlength=sessions)
    return [1 + int(count) for count in counts]
