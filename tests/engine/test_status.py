"""What the engine tells about its drafting: while sessions run, and after they have ended."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from app.engine.events import Event, Failed, Finished
from app.engine.interface import STEP_ROWS, DraftingStatus
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from racer.budget import CostCurve
from racer.drafter import RacerConfig
from tests.tiny import tiny_engine
from tests.waiting import wait_until

CURVE = ((1, 0.02), (8, 0.021), (64, 0.04))
SMALL = RacerConfig(automaton_nodes=60)
PROMPT = tuple(5 + place % 7 for place in range(30))


def request(drafter: str) -> GenerationRequest:
    return GenerationRequest(
        PROMPT,
        SamplingParams(0.9, seed=1),
        StopParams(max_tokens=100),
        SpeculationParams(drafter),  # type: ignore[arg-type]
    )


def test_drafting_state_is_told_while_it_exists() -> None:
    with tiny_engine(eos=frozenset(), cost_curve=CURVE, racer=SMALL) as engine:
        seen: list[DraftingStatus] = []
        ended = threading.Event()

        def sink(event: Event) -> None:
            if isinstance(event, Finished | Failed):
                ended.set()
            else:
                seen.append(engine.status().drafting)

        before = engine.status().drafting
        engine.submit(request("racer"), sink)
        assert ended.wait(60.0)
        after = engine.status().drafting
    assert (before.sessions, before.automaton_nodes, before.automaton_evictions) == (0, 0, 0)
    assert {status.sessions for status in seen} == {1}
    assert all(0 < status.automaton_nodes <= 60 and status.session_rows > 0 for status in seen)
    evictions = [status.automaton_evictions for status in seen]
    assert evictions == sorted(evictions)
    assert evictions[-1] > 0
    assert (after.sessions, after.automaton_nodes, after.session_rows) == (0, 0, 0)
    assert after.automaton_evictions >= evictions[-1]
    assert after.warm_rows > 0


def test_plain_sessions_hold_none() -> None:
    with tiny_engine(eos=frozenset(), cost_curve=CURVE) as engine:
        engine.generate(request("none"))
        drafting = engine.status().drafting
    assert (drafting.automaton_evictions, drafting.warm_rows, drafting.prior_rows) == (0, 0, 0)


def test_the_cost_of_a_step_is_told_in_powers_of_two() -> None:
    with tiny_engine(cost_curve=CURVE) as engine:
        told = engine.status().drafting.step_seconds
    expected = CostCurve([n for n, _ in CURVE], [seconds for _, seconds in CURVE]).table(256)
    assert told == pytest.approx([expected[rows] for rows in STEP_ROWS])


def test_prior_rows_are_counted() -> None:
    with tiny_engine(cost_curve=CURVE, prior_rows=50) as engine:
        assert engine.instruments.settle(60.0)
        assert engine.status().drafting.prior_rows == 50


def test_an_engine_without_tree_attention_has_no_curve() -> None:
    with tiny_engine("qwen3-next", eos=frozenset()) as engine:
        assert not engine.info.tree_attention
        done = engine.generate(request("none"))
        assert done.finished.completion_tokens == 100
        assert engine.status().drafting.step_seconds == ()


def test_a_kept_conversation_is_a_session_and_its_evictions_count_once() -> None:
    with tiny_engine(eos=frozenset(), cost_curve=CURVE, racer=SMALL) as engine:
        first = replace(request("racer"), conversation="talk")
        said = engine.generate(first).token_ids
        wait_until(lambda: engine.status().conversations == 1)
        after_one = engine.status().drafting
        engine.generate(replace(first, prompt_ids=(*PROMPT, *said, 9, 9)))
        wait_until(lambda: engine.status().conversations == 1)
        after_two = engine.status().drafting
        (drafter,) = engine._scheduler.slots.prefixes.drafters
    assert after_one.sessions == after_two.sessions == 1
    assert after_one.automaton_nodes == 60
    assert 0 < after_one.automaton_evictions < after_two.automaton_evictions == drafter.state.evictions
