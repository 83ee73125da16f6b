"""The statistics of a report: medians, ratios, and how far they may be trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from racer.tree import Float64Array, Int64Array

RESAMPLES = 2000
CHUNK = 1 << 20  # numbers drawn at once


def median(values: Sequence[float]) -> float | None:
    """None for no values."""
    return float(np.median(np.asarray(values))) if len(values) else None


def bootstrap_median(values: Sequence[float], seed: int, level: float = 0.95) -> tuple[float | None, float | None]:
    """Percentile bootstrap interval of the median, questions drawn with replacement; the same for the same seed."""
    array = np.asarray(values, np.float64)
    return _interval(len(values), seed, level, lambda drawn: np.median(array[drawn], axis=1))


def bootstrap_total(
    own: Sequence[tuple[float, float]], base: Sequence[tuple[float, float]], seed: int, level: float = 0.95
) -> tuple[float | None, float | None]:
    """The same of the ratio of rates over all questions. own, base: (tokens, seconds) of each question."""
    mine, theirs = np.asarray(own, np.float64), np.asarray(base, np.float64)

    def ratios(drawn: Int64Array) -> Float64Array:
        a, b = mine[drawn].sum(axis=1), theirs[drawn].sum(axis=1)
        found: Float64Array = (a[:, 0] / a[:, 1]) / (b[:, 0] / b[:, 1])
        return found

    return _interval(len(own), seed, level, ratios)


def _interval(
    size: int, seed: int, level: float, statistic: Callable[[Int64Array], Float64Array]
) -> tuple[float | None, float | None]:
    """statistic: of rows of question numbers [resamples, size]. (None, None) for no questions."""
    if not size:
        return None, None
    rng = np.random.default_rng(seed)
    rows = max(1, CHUNK // size)
    found = [statistic(rng.integers(0, size, (min(rows, RESAMPLES - done), size))) for done in range(0, RESAMPLES, rows)]
    low, high = np.quantile(np.concatenate(found), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def ratio(above: float, below: float) -> float | None:
    """None where there is nothing to divide by."""
    return above / below if below else None
