"""A model that fails: who hears of it, what is held meanwhile, and when the engine gives up."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from app.api.errors import as_api_error
from app.engine.calls import Completion
from app.engine.engine import Engine
from app.engine.errors import EngineClosed, EngineFailed, GenerationLost
from app.engine.events import Delta, Event, Failed, Finished, StepRecord
from app.engine.forward.target import Rows
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.engine.scheduler.health import Failures, failure_of
from app.engine.step import StepResult
from app.text.errors import GrammarError
from tests.engine.drafting import CHEAP, FLAT, similar
from tests.tiny import tiny_engine
from tests.waiting import wait_until

Forward = Callable[[Sequence[Rows]], torch.Tensor]
PLAIN = SpeculationParams("none")


def asked(first: int = 10, n: int = 12, speculation: SpeculationParams = PLAIN, **more: Any) -> GenerationRequest:
    return GenerationRequest(tuple(range(first, first + 5)), SamplingParams(0.0), StopParams(n), speculation, **more)


def replace_forward(engine: Engine, make: Callable[[Forward], Forward]) -> None:
    target: Any = engine._decoder.target
    target.forward = make(target.forward)


def probes(batch: Sequence[Rows]) -> bool:
    return len(batch) == 1 and getattr(batch[0].cache, "capacity", 0) == 1


def together(engine: Engine, requests: Sequence[GenerationRequest]) -> list[list[Event]]:
    """Submitted before the first is admitted."""
    events: list[list[Event]] = [[] for _ in requests]
    with engine._scheduler.pool.wake:
        for one, sink in zip(requests, events, strict=True):
            engine.submit(one, sink.append)
    wait_until(lambda: all(sent and isinstance(sent[-1], Finished | Failed) for sent in events))
    return events


@pytest.mark.parametrize("running", [1, 3])
def test_a_device_that_fails_for_good_ends_the_worker_and_everybody_hears(running: int) -> None:
    passes = 0

    def failing(forward: Forward) -> Forward:
        def fail(batch: Sequence[Rows]) -> torch.Tensor:
            nonlocal passes
            passes += 1
            if passes <= running:  # the prompts
                return forward(batch)
            raise RuntimeError("device lost")

        return fail

    with tiny_engine(max_running=running, eos=frozenset()) as engine:
        replace_forward(engine, failing)
        events = together(engine, [asked(10 + place) for place in range(5)])
        wait_until(lambda: not engine.status().alive)
        assert not engine.status().ready
        with pytest.raises(EngineFailed):
            engine.submit(asked(), lambda _: None)
    errors = [sent[-1].error for sent in events if isinstance(sent[-1], Failed)]
    assert len(errors) == 5
    assert [str(error) for error in errors[:running]] == ["device lost"] * running
    assert all(isinstance(error, EngineFailed) for error in errors[running:])
    assert passes == running + (2 if running == 1 else 1 + 3 + 1)  # the step, those alone, and the token that proves it


@pytest.mark.parametrize("good_between", [False, True])
def test_failures_in_a_row_end_the_engine_and_others_do_not(good_between: bool) -> None:
    """The model can still read the one token that proves it."""

    def failing(forward: Forward) -> Forward:
        def fail(batch: Sequence[Rows]) -> torch.Tensor:
            if any(int(rows.tokens[0]) == 50 for rows in batch if not probes(batch)):
                raise RuntimeError("out of memory")
            return forward(batch)

        return fail

    with tiny_engine(eos=frozenset(), max_failures=3) as engine:
        replace_forward(engine, failing)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="out of memory"):
                engine.generate(asked(50))
        if good_between:
            assert engine.generate(asked(10)).finished.reason == "length"
        with pytest.raises(RuntimeError, match="out of memory"):
            engine.generate(asked(50))
        if good_between:
            assert engine.generate(asked(10)).finished.reason == "length"
            assert engine.status().alive
        else:
            wait_until(lambda: not engine.status().alive)


def test_a_generation_that_ran_when_the_worker_died_is_not_for_another_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be what killed it, so its client gets 500; those that waited may be asked again elsewhere."""
    with tiny_engine(max_running=1, eos=frozenset()) as engine:
        worker = engine._scheduler

        def die() -> None:
            if len(worker.pool.running) == 1 and worker.waiting == 2:
                raise MemoryError

        monkeypatch.setattr(worker.rounds, "decode", die)
        events = together(engine, [asked(10 + place) for place in range(3)])
        wait_until(lambda: not engine.status().alive)
    errors = [sent[-1].error for sent in events if isinstance(sent[-1], Failed)]
    assert [type(error) for error in errors] == [GenerationLost, EngineFailed, EngineFailed]
    assert [as_api_error(error).status for error in errors] == [500, 503, 503]


def test_the_fault_of_a_request_is_none_of_the_model() -> None:
    class Impossible:
        def matcher(self) -> Any:
            raise GrammarError("nothing matches", "response_format")

    with tiny_engine(max_failures=1) as engine:
        for _ in range(3):
            with pytest.raises(GrammarError):
                engine.generate(asked(grammar=Impossible()))
        assert engine.generate(asked()).finished.completion_tokens > 0


def test_a_model_that_gives_no_numbers_is_broken() -> None:
    def poisoned(forward: Forward) -> Forward:
        def forward_or_nothing(batch: Sequence[Rows]) -> torch.Tensor:
            if probes(batch):
                return torch.full_like(forward(batch), torch.nan)
            raise RuntimeError("made to fail")

        return forward_or_nothing

    with tiny_engine() as engine:
        replace_forward(engine, poisoned)
        with pytest.raises(RuntimeError):
            engine.generate(asked())
        wait_until(lambda: not engine.status().alive)


def test_idle_work_that_fails_on_a_broken_device_ends_the_worker() -> None:
    with tiny_engine(prior_rows=64, cost_curve=FLAT) as engine:
        engine.instruments.settle(30.0)

        def broken(_: Sequence[Rows]) -> torch.Tensor:
            raise RuntimeError("device lost")

        def idle() -> bool:
            engine._decoder.target.forward([])
            return True

        replace_forward(engine, lambda _: broken)
        engine._scheduler.rounds.idle = idle
        wait_until(lambda: not engine.status().alive)


def test_only_failures_without_a_success_between_them_are_a_row() -> None:
    probed: list[int] = []
    failures = Failures(3, lambda: probed.append(1))
    for _ in range(2):
        failures.add(RuntimeError())
        assert not failures.broken() and not failures.broken()
    assert len(probed) == 2  # once for each failure
    failures.clear()
    for error in (RuntimeError(), RuntimeError(), EngineClosed(), GrammarError("no", None)):
        failures.add(error)
    assert failures.in_a_row == 2 and not failures.broken()
    failures.add(MemoryError())
    assert failures.broken()
    assert len(probed) == 3


def test_what_a_failed_frame_held_is_gone_before_anything_is_tried_again() -> None:
    """Also what the frames of the errors held that it came from."""
    held: list[weakref.ref[torch.Tensor]] = []

    def inner() -> None:
        batch = torch.zeros(8)
        held.append(weakref.ref(batch))
        raise ValueError("first")

    def outer() -> None:
        more = torch.zeros(8)
        held.append(weakref.ref(more))
        try:
            inner()
        except ValueError as error:
            raise RuntimeError("second") from error

    error = failure_of(outer)
    assert isinstance(error, RuntimeError) and isinstance(error.__cause__, ValueError)
    assert [ref() for ref in held] == [None, None]
    assert failure_of(lambda: None) is None


@pytest.mark.slow
def test_a_failed_batch_holds_nothing_while_its_sessions_run_alone() -> None:
    alive: list[bool] = []
    held: list[weakref.ref[torch.Tensor]] = []

    def failing(forward: Forward) -> Forward:
        def fail(batch: Sequence[Rows]) -> torch.Tensor:
            if len(batch) > 1:
                large = torch.zeros(8)
                held.append(weakref.ref(large))
                raise RuntimeError("out of memory")
            alive.extend(ref() is not None for ref in held)
            return forward(batch)

        return fail

    with tiny_engine(eos=frozenset()) as engine:
        alone = [engine.generate(asked(first)).token_ids for first in (10, 20)]
        replace_forward(engine, failing)
        events = together(engine, [asked(10), asked(20)])
        assert [tokens_of(sent) for sent in events] == alone
        assert engine.status().alive
    assert alive and not any(alive)


def tokens_of(events: Sequence[Event]) -> tuple[int, ...]:
    return tuple(token for event in events if isinstance(event, Delta) for token in event.token_ids)


class Counts:
    """An observer that adds up what it hears."""

    def __init__(self) -> None:
        self.first = self.inter = 0
        self.records: list[StepRecord] = []

    def first_token(self, seconds: float) -> None:
        self.first += 1

    def inter_token(self, seconds: float, tokens: int) -> None:
        assert tokens > 0
        self.inter += tokens

    def step(self, record: StepRecord) -> None:
        self.records.append(record)

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


@pytest.mark.parametrize("where", ["walk", "emit", "commit", "learn"])
@pytest.mark.parametrize("drafter", ["racer", "draft_model"])
def test_one_session_that_fails_in_a_step_ends_alone_and_the_others_are_counted(where: str, drafter: Any) -> None:
    """Whatever fails: what each client got is what the record and the counts of the sessions say."""
    speculation = SpeculationParams(drafter, max_nodes=8, fixed_budget=True)
    heard = Counts()
    with tiny_engine(
        eos=frozenset(), draft=similar(), cost_curve=FLAT, draft_curve=CHEAP, observer=heard, warm_start=False
    ) as engine:
        alone = [engine.generate(asked(first, speculation=speculation)) for first in (10, 20, 30)]
        heard.records.clear()
        heard.first = heard.inter = 0
        step = engine._decoder.step
        calls = 0

        def step_and_fail(sessions: Any) -> StepResult:
            nonlocal calls
            calls += 1
            if calls == 2:
                break_session(sessions[1], where)
            return step(sessions)

        engine._decoder.step = step_and_fail  # type: ignore[method-assign]
        events = together(engine, [asked(first, speculation=speculation) for first in (10, 20, 30)])
        assert engine.status().alive and engine.status().running == 0
    good = [events[0], events[2]]
    assert [tokens_of(sent) for sent in good] == [alone[0].token_ids, alone[2].token_ids]
    last = events[1][-1]
    assert isinstance(last, Failed) and str(last.error) == "made to fail"
    sent = sum(len(tokens_of(sent)) for sent in events)
    assert heard.first == 3
    assert heard.inter == sent - 3
    assert sum(sum(record.emitted_by_source.values()) for record in heard.records) == sent - 3
    assert heard.records[0].sessions == 3
    assert heard.records[1].sessions == len(heard.records[1].budgets) == (2 if where in ("walk", "emit") else 3)
    for record in heard.records:
        assert sum(record.accepted_lengths) + record.sessions == sum(record.emitted_by_source.values())
        assert sum(record.budgets) == record.nodes == record.drafted + record.sessions


def break_session(session: Any, where: str) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("made to fail")

    if where == "walk":
        session.processor = type("Rules", (), {"apply": fail, "forced": lambda _: [], "vocab_size": 0})()
    elif where == "emit":
        session.answer._detokenizer.push = fail
    elif where == "commit":
        session.cache.commit = fail
    else:
        session.drafter.observe = fail


def test_an_answer_whose_end_cannot_be_rendered_fails_alone() -> None:
    with tiny_engine(eos=frozenset()) as engine:
        advance = engine._decoder.prefill.advance

        def advance_and_break(session: Any) -> None:
            if session.request.prompt_ids[0] == 20:
                session.answer._detokenizer.flush = lambda: 1 / 0
            advance(session)

        engine._decoder.prefill.advance = advance_and_break  # type: ignore[method-assign]
        stop = StopParams(12, stop_token_ids=tuple(range(97)), min_tokens=4)
        good, bad = together(engine, [asked(10), GenerationRequest(tuple(range(20, 25)), SamplingParams(0.0), stop)])
        assert isinstance(good[-1], Finished)
        assert isinstance(bad[-1], Failed)
        assert isinstance(engine.generate(asked(10)), Completion)


@pytest.mark.parametrize("name", ["llama", "qwen3-next"])
def test_each_forward_shows_that_the_worker_lives(name: str) -> None:
    """Chunks of prompts, decode steps, the draft model and idle work: a round of many is not one silence."""
    drafts: dict[str, Any] = {"draft": similar(), "draft_curve": CHEAP} if name == "llama" else {}
    with tiny_engine(name, eos=frozenset(), prefill_chunk=4, cost_curve=FLAT, prior_rows=97, **drafts) as engine:
        pulse = engine._scheduler.pulse
        assert engine.instruments.settle(60.0)
        beats = 0
        beat = pulse.beat

        def count() -> None:
            nonlocal beats
            beats += 1
            beat()

        pulse.beat = count  # type: ignore[method-assign]
        models: list[Any] = list(engine._decoder.models)

        def seen() -> int:
            return sum(len(model.forward.seen) for model in models)

        for model in models:
            assert model.pulse is pulse
            model.forward = counted(model.forward, lambda: beats)
        speculation = SpeculationParams("draft_model", max_nodes=8, fixed_budget=True) if drafts else PLAIN
        engine.generate(GenerationRequest(tuple(range(10, 40)), SamplingParams(0.0), StopParams(6), speculation))
        assert seen() > 8
        if engine._prior is not None:
            before, engine._prior._done = seen(), 0
            assert engine.instruments.settle(60.0)
            assert seen() > before
        assert all(after >= before + 2 for model in models for before, after in model.forward.seen)


def counted(forward: Forward, beats: Callable[[], int]) -> Forward:
    seen: list[tuple[int, int]] = []

    def forward_between(batch: Sequence[Rows]) -> torch.Tensor:
        before = beats()
        logits = forward(batch)
        seen.append((before, beats()))
        return logits

    forward_between.seen = seen  # type: ignore[attr-defined]
    return forward_between
