"""The budget: what is worth verifying under a given cost curve."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer.budget import CostCurve, share_budget, worth

FLAT = CostCurve([1, 64], [0.02, 0.02])
LINEAR = CostCurve([1, 64], [0.02, 64 * 0.02])


def falling(*chances: float) -> np.ndarray:
    return np.array([1.0, *chances], np.float32)


def test_a_flat_curve_takes_every_node_and_a_linear_one_none():
    chances = [falling(0.9, 0.5, 0.1, 0.001), falling(0.2)]
    assert share_budget(chances, FLAT) == [5, 2]
    assert share_budget(chances, LINEAR) == [1, 1]


def test_the_sessions_compete_for_the_same_rows():
    step = CostCurve([1, 4, 5, 64], [0.02, 0.02, 0.2, 0.3])  # the fifth row is dear
    assert share_budget([falling(0.3, 0.2), falling(0.9, 0.8)], step) == [1, 3]
    assert share_budget([falling(0.3, 0.2), falling(0.9, 0.8)], step, fixed=2) == [1, 1]


def test_a_cheaper_second_row_is_taken_even_if_it_brings_nothing():
    assert share_budget([falling(0.0001)], CostCurve([1, 2, 64], [0.03, 0.025, 0.5])) == [2]


@given(
    st.lists(st.lists(st.floats(0.001, 1.0), max_size=4), min_size=1, max_size=3),
    st.lists(st.floats(0.001, 0.05), min_size=3, max_size=3),
)
def test_no_other_choice_of_nodes_emits_more_per_second(parts: list[list[float]], rises: list[float]):
    chances = [falling(*sorted(part, reverse=True)) for part in parts]
    curve = CostCurve([1, 3, 6, 20], np.cumsum([0.02, *rises]).tolist())
    costs = curve.table(30)

    def rate(shares: tuple[int, ...]) -> float:
        emitted = sum(
            1.0 + float(worth(part[1:share]).sum(dtype=np.float64)) for part, share in zip(chances, shares, strict=True)
        )
        return emitted / float(costs[sum(shares)])

    ours = tuple(share_budget(chances, curve))
    best = max(rate(shares) for shares in itertools.product(*(range(1, len(part) + 1) for part in chances)))
    assert rate(ours) == pytest.approx(best, rel=1e-5)


@given(st.lists(st.floats(0.0005, 0.02), min_size=4, max_size=4), st.integers(1, 4))
def test_nodes_below_the_floor_are_never_taken(rises: list[float], sessions: int):
    curve = CostCurve([1, 2, 8, 16, 64], np.cumsum([0.02, *rises]).tolist())
    floor = curve.floor(sessions, 16)
    below = [falling(*[floor * 0.98] * 15) for _ in range(sessions)]
    assert share_budget(below, curve) == [1] * sessions


def test_the_curve_interpolates_and_extrapolates():
    curve = CostCurve([1, 2, 4], [0.02, 0.03, 0.05])
    assert curve.table(8).tolist() == pytest.approx([0, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09])


def test_a_slower_machine_moves_the_whole_curve_and_not_its_shape():
    curve = CostCurve([1, 2, 4], [0.02, 0.03, 0.05])
    for _ in range(640):
        curve.observe(3, 0.08)
    costs = curve.table(4)
    assert costs[3] == pytest.approx(0.08, rel=0.05)
    assert costs[4] / costs[1] == pytest.approx(0.05 / 0.02, rel=0.2)  # before, the sizes in use alone grew dear


def test_the_shape_follows_sizes_that_cost_more_than_the_others():
    curve = CostCurve([1, 2, 4], [0.02, 0.03, 0.05])
    for _ in range(3200):
        curve.observe(1, 0.02)
        curve.observe(4, 0.08)
    assert curve.table(4)[4] / curve.table(4)[1] == pytest.approx(4.0, rel=0.1)


def test_a_hiccup_moves_the_curve_little_and_a_size_never_measured_not_at_all():
    curve = CostCurve([1, 2, 4], [0.02, 0.03, 0.05])
    curve.observe(100, 9.0)
    curve.observe(1, 1000.0)
    for _ in range(15):
        curve.observe(1, 0.02)
    assert 0.02 <= curve.table(1)[1] <= 0.0215


def test_a_node_is_worth_more_than_its_chance_and_never_more_than_a_token():
    chances = np.linspace(0, 1, 101, dtype=np.float32)
    values = worth(chances)
    assert np.all(values >= chances) and np.all(np.diff(values) > 0) and values[-1] == 1.0


@pytest.mark.parametrize(
    ("sizes", "seconds"), [([1], [1.0]), ([2, 3], [1.0, 1.0]), ([1, 1], [1.0, 1.0]), ([1, 2], [1.0, 0.0]), ([1, 2], [1.0])]
)
def test_a_curve_that_cannot_be_is_refused(sizes: list[int], seconds: list[float]):
    with pytest.raises(ValueError, match=r"cost|sizes"):
        CostCurve(sizes, seconds)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20))
def test_at_agrees_with_the_table(rows: list[int]) -> None:
    curve = CostCurve((1, 8, 64), (0.02, 0.021, 0.05))
    assert curve.at(rows) == [curve.table(300)[n] for n in rows]
