"""Divergence statistics of the paper, on hand-made events."""

from __future__ import annotations

import pytest

from csd.divergence import Divergences, Event, agreement


def counted(*pairs: tuple[int, int, int]) -> Divergences:
    found = Divergences()
    for draft, target, times in pairs:
        found.add([Event(draft, target, -float(n + 1)) for n in range(times)], positions=2 * times)
    return found


def test_pairs_are_ordered_by_count_and_the_frequent_fifth_is_weighed():
    found = counted((1, 2, 1), (3, 4, 6), (5, 6, 1), (7, 8, 1), (9, 9, 1))
    assert found.entries()[0] == (3, 4, 6.0)
    assert found.events == 10 and found.positions == 20
    assert found.frequent_share() == pytest.approx(0.6)  # one of five pairs holds six of ten events
    assert (found.above(5), found.above(6)) == (1, 0)


def test_the_gap_of_a_pair_keeps_least_mean_and_greatest():
    record = counted((3, 4, 3)).pairs[(3, 4)]
    assert (record.least, record.mean, record.greatest) == (-3.0, -2.0, -1.0)


def test_nothing_seen_is_no_division_by_zero():
    assert Divergences().frequent_share() == 0.0
    assert agreement([], counted((1, 2, 1)).entries(), 10) == 0.0


def test_the_agreement_of_two_tables_is_the_share_of_common_top_pairs():
    left, right = counted((1, 2, 5), (3, 4, 4), (5, 6, 1)), counted((3, 4, 9), (1, 2, 2), (7, 8, 1))
    assert agreement(left.entries(), right.entries(), 2) == 1.0
    assert agreement(left.entries(), right.entries(), 3) == pytest.approx(2 / 3)
