"""How long a draft may get: the records, and the reckoning by hand."""

from __future__ import annotations

import itertools

import pytest

from app.engine.draft.control import (
    CLASSES,
    FADE,
    LATELY,
    MEMORY,
    REST,
    SESSION_PRIOR,
    START_RATE,
    DraftAcceptance,
    Record,
    StepForecast,
    Throughput,
)
from racer.budget import CostCurve

KINDS = list(itertools.product((False, True), (False, True), (0.05, 0.95)))  # sampled, agreed, probability


def test_a_record_fades_with_each_token_and_slower_at_rest() -> None:
    record = Record()
    for hit in (True, False, True):
        record.count(hit)
    assert record.hits == pytest.approx(FADE**2 + 1.0)
    assert record.trials == pytest.approx(FADE**2 + FADE + 1.0)
    rate = record.hits / record.trials
    record.rest()
    assert record.trials == pytest.approx(REST * (FADE**2 + FADE + 1.0))
    assert record.hits / record.trials == pytest.approx(rate)


def test_a_session_that_does_badly_is_tried_again_after_a_rest() -> None:
    acceptance, record = DraftAcceptance(), Record()
    assert acceptance.average(False, record) == pytest.approx(START_RATE)
    for _ in range(20):
        record.count(False)
    low = acceptance.average(False, record)
    assert low == pytest.approx(SESSION_PRIOR * START_RATE / (record.trials + SESSION_PRIOR))
    for _ in range(200):
        record.rest()
    assert low < 0.3
    assert acceptance.average(False, record) > 0.6


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_token_is_judged_by_its_own(kind: tuple[bool, bool, float]) -> None:
    acceptance = DraftAcceptance()
    before = {other: acceptance.chance(*other) for other in KINDS}
    for _ in range(200):
        acceptance.count(*kind, hit=kind[2] < 0.5)
    after = {other: acceptance.chance(*other) for other in KINDS}
    assert {other for other in KINDS if after[other] != before[other]} == {kind}
    assert after[kind] == pytest.approx(float(kind[2] < 0.5), abs=0.1)
    sampled = acceptance.average(kind[0], Record())
    assert sampled == pytest.approx((200 * (kind[2] < 0.5) + START_RATE * 20) / 220)
    assert acceptance.average(not kind[0], Record()) == pytest.approx(START_RATE)


def test_at_first_a_token_is_believed_what_its_probability_says_and_more_where_both_propose_it() -> None:
    acceptance = DraftAcceptance()
    for place in range(CLASSES):
        probability = (place + 0.5) / CLASSES
        assert acceptance.chance(False, False, probability) == pytest.approx(probability)
        assert acceptance.chance(False, True, probability) == pytest.approx(1 - 0.7 * (1 - probability))
    assert acceptance.chance(False, False, 1.0) == acceptance.chance(False, False, 0.99)
    for _ in range(5000):
        acceptance.count(False, False, 1.0, True)
    assert acceptance.chance(False, False, 1.0) == 0.995  # nothing is certain


def test_what_was_long_ago_counts_half() -> None:
    acceptance = DraftAcceptance()
    for _ in range(int(MEMORY)):
        acceptance.count(False, False, 0.5, True)
    for _ in range(int(MEMORY)):
        acceptance.count(False, False, 0.5, False)
    assert acceptance.chance(False, False, 0.5) < 0.3  # an even record of both would say a half
    assert acceptance.average(False, Record()) < 0.3


def test_the_pace_of_late_is_that_of_the_last_steps() -> None:
    lately = Throughput()
    lately.add(1, 10, 0.1)
    lately.add(2, 4, 0.1)
    assert lately.rate(1) == pytest.approx((10 * LATELY + 2) / (0.1 * LATELY + 0.1))
    assert lately.rate(3) == pytest.approx(3 * lately.rate(1))
    for _ in range(200):
        lately.add(1, 1, 0.1)
    assert lately.rate(1) == pytest.approx(10.0, rel=0.01)


FLAT = CostCurve([1, 64], [0.1, 0.1])
RISING = CostCurve([1, 65], [0.1, 0.1 + 64 * 0.02])  # each row 0.02 s
DRAFT = CostCurve([1, 16], [0.05, 0.05])


def pays(
    pace: StepForecast, rate: float, *, rivals: tuple[float, ...] = (), most: int = 1, company: int = 1, grows: bool = True
) -> bool:
    return pace.pays(rivals, 1.0, rate, most, company, grows=grows)


def test_a_token_pays_where_it_brings_more_than_its_time() -> None:
    pace = StepForecast(FLAT, DRAFT, rows=1, tokens=1.0)  # 10 tokens a second: 0.05 s must bring half a token
    assert pays(pace, 0.51) and not pays(pace, 0.49)
    assert not pays(pace, 1.0, most=0)


def test_a_row_to_verify_costs_too_unless_it_is_verified_anyway() -> None:
    pace = StepForecast(RISING, DRAFT, rows=1, tokens=1.0)  # 0.07 s for a token that adds a row
    assert not pays(pace, 0.65) and pays(pace, 0.75)
    assert pays(pace, 0.55, grows=False)
    grown, same = StepForecast(RISING, DRAFT, rows=1, tokens=1.0), StepForecast(RISING, DRAFT, rows=1, tokens=1.0)
    for _ in range(5):
        grown.add(0.0, grows=True)
        same.add(0.0, grows=False)
    assert pays(grown, 0.4) and not pays(same, 0.4)  # a step of 0.2 s for one token: time is cheap


def test_sessions_share_the_time_of_a_forward() -> None:
    pace = StepForecast(FLAT, DRAFT, rows=4, tokens=4.0)  # 40 tokens a second
    assert not pays(pace, 0.9)
    assert pays(pace, 0.9, company=4)


def test_what_the_sessions_own_tree_brings_is_no_gain() -> None:
    pace = StepForecast(FLAT, DRAFT, rows=1, tokens=1.0)
    assert not pays(pace, 0.8, rivals=(0.5,))
    assert pays(pace, 0.8, rivals=(0.2,))
    assert pays(pace, 0.9, rivals=(0.5, 0.0, 0.0), most=3)  # the later tokens make up for it


def test_time_and_tokens_of_this_step_so_far_tell_what_time_is_worth() -> None:
    pace = StepForecast(FLAT, DRAFT, rows=1, tokens=1.0)
    pace.spend(1)
    pace.spend(1)
    assert pace.drafted == pytest.approx(0.1)
    assert pays(pace, 0.3)  # 5 tokens a second: 0.05 s must bring a quarter of a token
    pace.add(3.0, grows=False)  # 20 tokens a second
    assert not pays(pace, 0.9)
    pace.add(-5.0, grows=False)  # no token is taken back
    assert not pays(pace, 0.9)
