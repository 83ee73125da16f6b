"""What an observer hears of times and ends: from arrival, from emission to emission, and by whose fault."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine.engine import Engine
from app.engine.events import Delta, Event, Failed, Finished, StepRecord
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from tests.engine.drafting import FLAT
from tests.scenarios.turnstile import Turnstile
from tests.tiny import tiny_engine
from tests.waiting import wait_until

LONG_AGO = 1000.0


class Listener:
    """Hears all, and moves its own clock by what was done: one for a prompt token, a thousand for a step."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self.firsts: list[float] = []
        self.gaps: list[tuple[float, int]] = []
        self.ends: list[tuple[Any, float]] = []

    def step(self, record: StepRecord) -> None:
        self.steps += 1
        self.now += 1000.0

    def prefilled(self, tokens: int) -> None:
        self.now += tokens

    def first_token(self, seconds: float) -> None:
        self.firsts.append(seconds)

    def inter_token(self, seconds: float, tokens: int) -> None:
        self.gaps.append((seconds, tokens))

    def finished(self, reason: Any, seconds: float, prompt_tokens: int, completion_tokens: int) -> None:
        self.ends.append((reason, seconds))


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Listener:
    listener = Listener()
    for module in ("answer", "generation"):
        monkeypatch.setattr(f"app.engine.{module}.time", SimpleNamespace(monotonic=lambda: listener.now))
    return listener


@contextmanager
def heard(listener: Listener, **settings: Any) -> Iterator[Engine]:
    """The observer comes after the start, which makes its own token."""
    with tiny_engine(eos=frozenset(), **settings) as engine:
        engine.observer = listener
        yield engine


def asked(prompt: tuple[int, ...], tokens: int, drafter: Any = "none", **fields: Any) -> GenerationRequest:
    return GenerationRequest(
        prompt,
        SamplingParams(0.0),
        StopParams(tokens),
        SpeculationParams(drafter, max_nodes=8, fixed_budget=True),
        **fields,
    )


def run(engine: Engine, request: GenerationRequest, on_delta: Any = lambda: None) -> Event:
    """The last event. on_delta: called with each delta, on the worker thread."""
    last: list[Event] = []

    def sink(event: Event) -> None:
        if isinstance(event, Delta):
            on_delta()
        else:
            last.append(event)

    engine.submit(request, sink)
    wait_until(lambda: bool(last) and engine.status().running == 0)
    return last[0]


@pytest.mark.parametrize("drafter", ["none", "racer"])
def test_gaps_add_up_to_the_time_between_first_and_last_emission(listener: Listener, drafter: str) -> None:
    prompt = (20, 21, 22, 23) * 3
    with heard(listener, cost_curve=FLAT) as engine:
        run(engine, asked(prompt, 60, drafter))
    assert sum(tokens for _, tokens in listener.gaps) == 59
    assert len(listener.gaps) == listener.steps
    assert sum(seconds for seconds, _ in listener.gaps) == len(prompt) + 1000 * (listener.steps - 1)
    assert drafter == "none" or listener.steps < 59  # some came together


def test_a_prompt_that_is_read_meanwhile_is_part_of_a_gap(listener: Listener) -> None:
    """Whoever reads the stream waits for it, and so does the histogram."""
    other = asked(tuple(range(10, 90)), 1)
    with heard(listener, prefill_chunk=16, cost_curve=FLAT) as engine:
        deltas = iter(range(100))

        def third() -> None:
            if next(deltas) == 2:
                engine.submit(other, lambda event: None)

        run(engine, asked((20, 21, 22), 30), third)
    assert sum(seconds for seconds, _ in listener.gaps) == 3 + 80 + 28_000
    assert sum(seconds > 1000 for seconds, _ in listener.gaps) == 5  # one chunk of it between two steps


def test_every_moment_of_a_step_is_in_one_phase_or_between_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that ticks each time it is read: a phase that held another, or began twice, would not add up."""
    records: list[StepRecord] = []
    listener = Listener()
    monkeypatch.setattr(listener, "step", records.append)
    with heard(listener, cost_curve=FLAT) as engine:
        monkeypatch.setattr(engine._decoder, "clock", itertools.count().__next__)
        engine.generate_all([asked((20, 21, 22, 23) * 3, 20, drafter) for drafter in ("none", "racer")])
    assert {record.sessions for record in records} == {1, 2}
    for record in records:
        assert min(record.phase_seconds.values()) >= 1
        assert record.seconds == 2 * sum(record.phase_seconds.values()) + 1


def test_seconds_count_from_arrival() -> None:
    listener = Listener()
    with heard(listener) as engine:
        run(engine, asked((20,), 3, arrived_at=time.monotonic() - LONG_AGO))
        run(engine, asked((20,), 3))
    assert listener.firsts[0] >= LONG_AGO > listener.firsts[1] > 0
    assert listener.ends[0][1] >= listener.firsts[0]
    assert LONG_AGO > listener.ends[1][1] >= listener.firsts[1]


def test_choices_of_one_prompt_arrived_together() -> None:
    listener = Listener()
    group, arrived_at = object(), time.monotonic() - LONG_AGO
    with heard(listener) as engine:
        engine.generate_all([asked((20, 21, 22), 3, group=group, arrived_at=arrived_at) for _ in range(3)])
        wait_until(lambda: len(listener.ends) == 3)
    assert len(listener.firsts) == 3
    assert min(listener.firsts) >= LONG_AGO


# -- by whose fault a generation ends ------------------------------------------------------------------------------------


def test_a_step_that_fails_is_an_error_of_the_server() -> None:
    listener = Listener()
    with heard(listener) as engine:
        turnstile = Turnstile(engine)
        turnstile.fail_at = 3
        turnstile.allow()
        assert isinstance(run(engine, asked((20,), 9)), Failed)
    assert [reason for reason, _ in listener.ends] == ["error"]


def test_what_the_end_of_the_server_cuts_short_is_no_error() -> None:
    listener = Listener()
    begun = threading.Event()
    with heard(listener, max_running=1) as engine:
        ends: list[Event] = []
        for _ in range(2):  # one runs, one waits
            engine.submit(asked((20,), 200), lambda event: begun.set() if isinstance(event, Delta) else ends.append(event))
        assert begun.wait(30.0)
        engine.close()
    assert len(ends) == 2
    assert [reason for reason, _ in listener.ends] == ["length" if isinstance(end, Finished) else "cancelled" for end in ends]


def test_a_worker_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener()
    with heard(listener) as engine:
        worker, reap = engine._scheduler, engine._scheduler.pool.reap
        monkeypatch.setattr(worker.pool, "reap", lambda: 1 / 0 if worker.waiting else reap())
        engine.submit(asked((20,), 9), lambda event: None)
        wait_until(lambda: not engine.status().alive)
    assert [reason for reason, _ in listener.ends] == ["error"]
