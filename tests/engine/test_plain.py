"""The base of the speedup: the curve at first, then the plain steps that happened."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.cost.steps import PlainCost
from racer.budget import CostCurve

CURVE = CostCurve((1, 8, 64), (0.03, 0.04, 0.1))


def test_at_first_the_calibration_is_all_there_is() -> None:
    pace = PlainCost(CURVE)
    assert pace.seconds(1, 5) == pytest.approx(0.15)
    assert pace.seconds(8, 16) == pytest.approx(0.08)  # two steps of eight sessions
    assert pace.step_seconds == pytest.approx(0.03)


@given(st.floats(0.1, 10.0), st.integers(1, 8))
def test_plain_steps_win_over_the_calibration(factor: float, sessions: int) -> None:
    pace = PlainCost(CURVE)
    for _ in range(300):
        pace.observe(sessions, sessions, factor * CURVE.at([sessions])[0])
    assert pace.ratio == pytest.approx(factor, rel=0.1, abs=0.1)


def test_hiccups_count_as_what_they_cost() -> None:
    pace = PlainCost(CURVE)
    for step in range(400):
        pace.observe(1, 1, 0.03 * (5 if step % 10 == 0 else 1))
    assert pace.ratio == pytest.approx(1.4, abs=0.12)


def test_where_all_steps_are_large_and_dear_the_calibration_stands() -> None:
    pace = PlainCost(CURVE)
    for _ in range(300):
        pace.observe(1, 32, 10 * CURVE.at([32])[0])
    assert pace.ratio == pytest.approx(1.0, abs=0.25)


def test_a_few_plain_steps_among_large_ones_put_it_right() -> None:
    pace = PlainCost(CURVE)
    for step in range(1000):
        pace.observe(1, 1 if step % 10 == 0 else 32, 0.06)
    assert pace.ratio == pytest.approx(2.0, rel=0.1)


def test_corrections_of_the_curve_are_not_followed() -> None:
    curve = CostCurve((1, 8), (0.03, 0.04))
    pace = PlainCost(curve)
    for _ in range(64):
        curve.observe(8, 0.08)
    assert curve.at([1])[0] > 0.04
    assert pace.step_seconds == pytest.approx(0.03)
