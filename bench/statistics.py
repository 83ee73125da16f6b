"""The two statistics of a report: the median, and how far it may be trusted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000
CHUNK = 1 << 20  # numbers drawn at once


def median(values: Sequence[float]) -> float | None:
    """None for no values."""
    return float(np.median(np.asarray(values))) if len(values) else None


def bootstrap_median(values: Sequence[float], seed: int, level: float = 0.95) -> tuple[float | None, float | None]:
    """Percentile bootstrap interval of the median, questions drawn with replacement; the same for the same seed."""
    if not len(values):
        return None, None
    rng = np.random.default_rng(seed)
    array = np.asarray(values, np.float64)
    rows = max(1, CHUNK // array.size)
    medians = [
        np.median(array[rng.integers(0, array.size, (min(rows, RESAMPLES - done), array.size))], axis=1)
        for done in range(0, RESAMPLES, rows)
    ]
    low, high = np.quantile(np.concatenate(medians), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def ratio(above: float, below: float) -> float | None:
    """None where there is nothing to divide by."""
    return above / below if below else None
