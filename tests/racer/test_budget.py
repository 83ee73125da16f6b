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
    step = CostCurve([1, 4, 5, 64], [0.02, 0.02, 0.2, 0.3])  # the fifth row is expensive
    assert share_budget([falling(0.3, 0.2), falling(0.9, 0.8)], step) == [1, 3]
    assert share_budget([falling(0.3, 0.2), falling(0.9, 0.8)], step, fixed=2) == [1, 1]


SMALL_MODEL = CostCurve([1, 2, 4, 8, 16, 24, 32, 64], [31.2, 32.0, 33.2, 35.0, 39.0, 46.9, 55.0, 92.0])  # milliseconds
CHANCES = falling(0.5, 0.3, 0.2, 0.15, 0.12, 0.1, 0.08, 0.07, 0.06, 0.05, 0.045, 0.04, 0.035, 0.03, 0.028, *[0.015] * 12)


def best_beside(rows: int, tokens: float) -> int:
    """Nodes with which the tokens of all sessions a second are most, by trying each number."""
    costs = SMALL_MODEL.table(rows + len(CHANCES))
    own = 1.0 + np.concatenate([[0.0], np.cumsum(worth(CHANCES[1:]), dtype=np.float64)])
    return max(range(1, len(CHANCES) + 1), key=lambda n: (tokens + own[n - 1]) / costs[rows + n])


@pytest.mark.parametrize(("rows", "tokens"), [(0, 0.0), (7, 7.0), (15, 15.0), (24, 1.0), (24, 9.5)])
def test_what_sessions_beside_emit_is_not_slowed_down_for_nothing(rows: int, tokens: float):
    assert share_budget([CHANCES], SMALL_MODEL, rows, tokens) == [best_beside(rows, tokens)]


def test_a_row_beside_emits_a_token_where_nothing_else_is_said():
    assert share_budget([CHANCES], SMALL_MODEL, 15) == [best_beside(15, 15.0)] == [3]


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


@given(st.lists(st.floats(0.0005, 0.02), min_size=4, max_size=4), st.integers(1, 4), st.integers(0, 3), st.integers(0, 20))
def test_nodes_below_the_floor_are_never_taken(rises: list[float], sessions: int, beside: int, fixed: int):
    curve = CostCurve([1, 2, 8, 16, 64], np.cumsum([0.02, *rises]).tolist())
    fixed = fixed if beside else 0
    floor = curve.floor(sessions + beside, 16, fixed)
    below = [falling(*[floor * 0.98] * 15) for _ in range(sessions)]
    assert share_budget(below, curve, beside + fixed, beside) == [1] * sessions


def test_large_fixed_trees_that_bring_little_lower_the_floor():
    dear = CostCurve([1, 8, 64], [0.02, 0.03, 0.2])
    assert dear.floor(2, 16, fixed=63) < 0.5 * dear.floor(2, 16)


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


def test_the_floor_follows_the_corrections_of_the_curve():
    curve = CostCurve([1, 2, 8, 64], [0.02, 0.021, 0.023, 0.05])
    before = curve.floor(1, 16)
    for _ in range(3200):
        curve.observe(1, 0.02)
        curve.observe(8, 0.09)
    assert curve.floor(1, 16) == CostCurve(curve.sizes.tolist(), curve.seconds.tolist()).floor(1, 16) != before
