"""Cost curves that are no lines: the stairs of padded forwards, and cliffs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from racer.budget import PROOF, CostCurve, share_budget

SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96)


def computed(rows: int) -> int:
    """Up to 32 as they are, then multiples of 4, above 64 of 16."""
    step = 1 if rows <= 32 else 4 if rows <= 64 else 16
    return rows + -rows % step


def smooth(rows: int) -> float:
    return 0.03 + 0.0005 * rows


def cliff(rows: int) -> float:
    """Above 56 rows each step takes 0.04 s more."""
    return smooth(rows) + (0.04 if rows > 56 else 0.0)


def curve_of(cost: Callable[[int], float], padded: bool = False) -> CostCurve:
    return CostCurve(SIZES, [cost(size) for size in SIZES], computed if padded else None)


def shuffled_steps(curve: CostCurve, cost: Callable[[int], float], steps: int, noise: float = 0.0) -> None:
    rng = np.random.default_rng(0)
    for rows in rng.integers(1, 65, steps).tolist():
        curve.observe(rows, cost(rows) * float(np.exp(noise * rng.standard_normal())))


def falling(n: int, first: float, factor: float) -> np.ndarray:
    return np.concatenate([[1.0], first * factor ** np.arange(n - 1)]).astype(np.float32)


def test_rows_that_are_padded_to_one_number_cost_the_same():
    table = curve_of(smooth, padded=True).table(128)
    assert table[1:33].tolist() == pytest.approx([smooth(rows) for rows in range(1, 33)])
    for edge in (36, 40, 60, 64):
        assert set(table[edge - 3 : edge + 1]) == {table[edge]} and table[edge] == pytest.approx(smooth(edge))
    assert set(table[81:97]) == {table[96]}
    assert np.all(table[[36, 40, 44, 64, 80, 96, 112]] < table[[37, 41, 45, 65, 81, 97, 113]])
    assert curve_of(smooth, padded=True).at([33, 97]) == [table[36], table[112]]


@pytest.mark.parametrize(("plain", "nodes", "filled"), [(0, 20, 20), (0, 34, 36), (3, 39, 41), (0, 46, 48), (4, 72, 76)])
def test_the_budget_fills_up_what_is_computed_anyway(plain: int, nodes: int, filled: int):
    """Some candidates that pay, then ones that are hardly ever accepted and cost nothing up to the edge."""
    chances = np.array([1.0] * nodes + [0.0005] * 60, np.float32)
    assert share_budget([chances], curve_of(smooth), plain) == [nodes]
    assert share_budget([chances], curve_of(smooth, padded=True), plain) == [filled]
    assert nodes == filled or computed(plain + filled) == plain + filled


def test_a_size_given_between_two_edges_is_a_point_at_the_edge():
    assert CostCurve((1, 30, 50), (0.1, 0.2, 0.3), computed).points == [(1, 0.1), (30, 0.2), (52, 0.3)]


def test_steps_that_are_padded_teach_their_edge():
    curve = curve_of(smooth, padded=True)
    dear: Callable[[int], float] = lambda rows: smooth(computed(rows)) * (1.5 if rows > 44 else 1.0)  # noqa: E731
    shuffled_steps(curve, dear, 6400)
    table = curve.table(64)
    assert set(table[45:49]) == {table[48]}
    assert table[48] / table[44] == pytest.approx(dear(48) / dear(44), rel=0.1)


@pytest.mark.parametrize("padded", [False, True])
def test_a_cliff_between_two_points_is_learnt_and_the_budget_stops_before_it(padded: bool):
    chances = falling(64, 0.97, 0.985)
    real: Callable[[int], float] = (lambda rows: cliff(computed(rows))) if padded else cliff
    curve = curve_of(real, padded)
    assert share_budget([chances], curve) != [56]  # the line from 48 to 64 hides it
    shuffled_steps(curve, real, 64 * 4 * PROOF, noise=0.03)
    table = curve.table(64)
    assert table[57] / table[56] == pytest.approx(cliff(57) / cliff(56), rel=0.1)
    assert table[64] / table[1] == pytest.approx(cliff(64) / cliff(1), rel=0.1)
    assert share_budget([chances], curve) == [56]


def test_where_the_line_is_right_no_point_is_added():
    curve = curve_of(smooth)
    shuffled_steps(curve, smooth, 64 * 2 * PROOF, noise=0.1)
    assert curve.sizes.tolist() == list(SIZES)


def test_fresh_and_padded_curves_know_nothing_of_corrections():
    curve = curve_of(smooth)
    shuffled_steps(curve, cliff, 64 * 4 * PROOF)
    assert len(curve.points) > len(SIZES)
    assert curve.fresh().points == [(size, smooth(size)) for size in SIZES]
    assert curve.padded(computed).at([33]) == [smooth(36)]
    assert curve.padded(computed).fresh().at([33]) == [smooth(36)]
