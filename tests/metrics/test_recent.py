"""The speedup of late: exact for steady work, and quick to forget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.events import StepRecord
from app.metrics import Metrics
from app.metrics.metrics import SPEEDUP_WINDOW
from app.metrics.recent import RecentRatio

SECONDS = st.floats(1e-4, 1e3)


@given(st.lists(SECONDS, min_size=1, max_size=50), st.floats(0.1, 10.0))
def test_steady_work_gives_its_ratio(spent: list[float], ratio: float) -> None:
    recent = RecentRatio(60.0)
    for seconds in spent:
        recent.add(ratio * seconds, seconds)
    assert recent.value == pytest.approx(ratio)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=50))
def test_it_lies_between_the_ratios_of_its_terms(terms: list[tuple[float, float]]) -> None:
    recent = RecentRatio(60.0)
    for gained, spent in terms:
        recent.add(gained, spent)
    ratios = [gained / spent for gained, spent in terms]
    assert min(ratios) * (1 - 1e-9) <= recent.value <= max(ratios) * (1 + 1e-9)


def test_after_five_windows_the_past_is_forgotten() -> None:
    recent = RecentRatio(60.0)
    for gained in [5.0] * 300 + [1.0] * 300:
        recent.add(gained, 1.0)
    assert recent.value == pytest.approx(1.0, abs=0.05)


def test_gauge_and_counters_tell_the_same() -> None:
    metrics = Metrics()
    for _ in range(10):
        metrics.step(
            StepRecord(1, 1, 9, 8, (2,), {"target": 1, "retrieval": 2}, budgets=(9,), seconds=0.04, plain_seconds=0.09)
        )
    page = dict(line.rsplit(" ", 1) for line in metrics.render().decode().splitlines() if line[0] != "#")
    assert SPEEDUP_WINDOW > 10 * 0.04
    assert float(page["racer_speedup_ratio"]) == pytest.approx(2.25)
    assert float(page["racer_decode_seconds_total"]) == pytest.approx(0.4)
    assert float(page["racer_plain_equivalent_seconds_total"]) == pytest.approx(0.9)
