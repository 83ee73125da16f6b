"""The budget: how many nodes are worth verifying, given what a node costs on this machine and what it is likely to bring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from racer.tree import Float32Array

REBUILD = 16  # observations after which the corrections take effect
SHAPE_SHARE = 0.2  # of a correction: what goes to the shape of the curve near the size, the rest to the machine's speed
TEACHING = 0.6  # what a verified row is worth beyond its chance p, as a share of p (1 - p): it refreshes a copy-logit row


class CostCurve:
    """T(n): seconds of a step that verifies n rows, all sessions together.

    Measured at some n and linear in between; beyond the last, the slope of the last piece goes on. `observe` refines it.
    """

    def __init__(self, sizes: Sequence[int], seconds: Sequence[float]) -> None:
        if len(sizes) < 2 or len(sizes) != len(seconds) or sizes[0] != 1:
            raise ValueError("a cost curve needs the cost of one row and of at least one larger number")
        if any(b <= a for a, b in pairwise(sizes)) or not all(0.0 < each < math.inf for each in seconds):
            raise ValueError("sizes must ascend and seconds be positive and finite")
        self.sizes = np.asarray(sizes, np.int64)
        self.seconds = np.array(seconds, np.float64)
        self._measured = self.seconds.copy()
        self._table = np.zeros(0)
        self._floors: dict[tuple[int, int, int], float] = {}
        self._observed = 0
        self._speed = 1.0

    def fresh(self) -> CostCurve:
        """The curve before `observe` corrected anything."""
        return CostCurve(self.sizes.tolist(), self._measured.tolist())

    def table(self, most: int) -> np.ndarray:
        """float64 [most + 1]: entry n is T(n); entry 0 is 0."""
        if len(self._table) <= most:
            self._table = self._interpolate(most)
        return self._table[: most + 1]

    def at(self, rows: Sequence[int]) -> list[float]:
        """T(n) for these n; for onlookers on other threads, since it keeps nothing."""
        return [float(seconds) for seconds in self._costs(np.asarray(rows))]

    def _interpolate(self, most: int) -> np.ndarray:
        costs = self._costs(np.arange(most + 1))
        costs[0] = 0.0
        return costs

    def _costs(self, n: np.ndarray) -> np.ndarray:
        seconds = self.seconds
        costs: np.ndarray = np.interp(n, self.sizes, seconds)
        last, before = self.sizes[-1], self.sizes[-2]
        slope = max(0.0, (seconds[-1] - seconds[-2]) / (last - before))
        costs[n > last] = seconds[-1] + slope * (n[n > last] - last)
        return costs

    def observe(self, rows: int, seconds: float, weight: float = 0.05) -> None:
        """Let one step that took `seconds` for `rows` rows correct the curve; hiccups over twice the estimate are cut.

        What a step takes more or less than expected is laid to the machine's speed of the moment first, which moves the whole
        curve and no decision; only a fifth of `weight` goes to the shape near `rows`. So sizes that are used often do not look
        dear beside sizes that are not.
        """
        if rows > self.sizes[-1]:
            return
        expected = float(self.table(rows)[rows]) * self._speed
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
        self._observed += 1
        if self._observed % REBUILD == 0:
            self.seconds *= self._speed
            self._speed = 1.0
            self._table = np.zeros(0)
            self._floors.clear()

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
