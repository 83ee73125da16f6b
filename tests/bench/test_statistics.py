"""The interval of the median against the one that order statistics give."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.statistics import bootstrap_median, bootstrap_total


def ranks(n: int, level: float) -> tuple[int, int]:
    """The interval's ends by rank, from 0. n: odd.

    The resampled median is at most the value of rank k where more than half of n draws are, each with probability (k + 1) / n.
    """

    def at_most(rank: int) -> float:
        chance = (rank + 1) / n
        return math.fsum(math.comb(n, hits) * chance**hits * (1 - chance) ** (n - hits) for hits in range(n // 2 + 1, n + 1))

    low = next(rank for rank in range(n) if at_most(rank) >= (1 - level) / 2)
    return low, n - 1 - low


@pytest.mark.parametrize("n", [25, 101, 401])
@pytest.mark.parametrize("level", [None, 0.5, 0.9, 0.95, 0.99])
def test_the_interval_is_that_of_the_resampled_median(n: int, level: float | None) -> None:
    values = np.random.default_rng(1).permutation(n).astype(float).tolist()  # a value is its rank
    found = bootstrap_median(values, 0) if level is None else bootstrap_median(values, 0, level)
    expected = ranks(n, level or 0.95)
    unit = math.sqrt(n) / 2  # the standard deviation of the median's rank
    assert found == pytest.approx(expected, abs=max(1.0, 0.15 * unit))


def test_the_default_is_told_from_its_neighbours() -> None:
    """So that a test of it can fail: ends of 90 and of 99 % are further away than the tolerance."""
    for n in (101, 401):
        ends = [ranks(n, level)[0] for level in (0.9, 0.95, 0.99)]
        assert min(ends[0] - ends[1], ends[1] - ends[2]) > max(1.0, 0.15 * math.sqrt(n) / 2)


def test_the_interval_of_the_total_spans_what_drawing_the_questions_anew_can_give() -> None:
    base = [(10.0, 2.0), (10.0, 2.0)]
    assert bootstrap_total([(10.0, 1.0), (10.0, 1.0)], base, 0) == (2.0, 2.0)
    assert bootstrap_total([(10.0, 1.0), (10.0, 2.0)], base, 0) == (1.0, 2.0)  # one question twice, in a quarter of the draws
    assert bootstrap_total([], [], 0) == (None, None)
