"""Short of memory the youngest wait and go on later: nothing is lost, sent twice, or different from an answer alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine import runtime as runtime_module
from app.engine.correction import CsdConfig
from app.engine.engine import Engine
from app.engine.errors import ContextLengthExceeded
from app.engine.events import Delta, Event, Failed, Finished
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.engine.session import Session
from tests.engine.drafting import CHEAP, FLAT, similar
from tests.engine.hand import by_hand, queued, rounds, session_of
from tests.engine.test_kv_budget import Slabs, token_bytes
from tests.engine.turns import GREEDY, PLAIN, SEEDED, Counting
from tests.structured import json_engine, json_loaded
from tests.tiny import tiny_engine
from tests.waiting import wait_until

WIDE = 10_000
SCHEMA = {"type": "array", "items": {"enum": ["ab", "abab", 12, True]}, "minItems": 3, "maxItems": 9}


def prompt(length: int, first: int = 10) -> tuple[int, ...]:
    return tuple(first + place * 7 % 80 for place in range(length))


@contextmanager
def squeezed(engine: Engine, rows: int, headroom: int = 4) -> Iterator[None]:
    room = engine._scheduler.slots
    before = room.headroom
    room.kv_tokens, room.headroom = rows, headroom
    try:
        yield
    finally:
        room.kv_tokens, room.headroom = WIDE, before


def together(engine: Engine, requests: Sequence[GenerationRequest]) -> list[list[Event]]:
    """Submitted before the first is admitted."""
    events: list[list[Event]] = [[] for _ in requests]
    with engine._scheduler.pool.wake:
        for one, sink in zip(requests, events, strict=True):
            engine.submit(one, sink.append)
    wait_until(lambda: all(sent and isinstance(sent[-1], Finished | Failed) for sent in events), timeout=60.0)
    return events


def alone(engine: Engine, request: GenerationRequest) -> list[Event]:
    """With all the memory there is, and nothing taken over."""
    return together(engine, [replace(request, group=None, conversation=None)])[0]


def last(events: Sequence[Event]) -> Finished:
    assert isinstance(events[-1], Finished), events[-1]
    return events[-1]


def said(events: Sequence[Event]) -> dict[str, Any]:
    """All that a client got, however it fell into events."""
    deltas = [event for event in events if isinstance(event, Delta)]
    end = last(events)
    assert len(events) == len(deltas) + 1
    return {
        "tokens": tuple(token for delta in deltas for token in delta.token_ids),
        "text": "".join(delta.text for delta in deltas) + end.text,
        "reason": end.reason,
        "completion": end.completion_tokens,
        "logprobs": [score.logprob for delta in deltas for score in delta.logprobs],
        "prompt": [0.0 if score is None else score.logprob for delta in deltas for score in delta.prompt_logprobs],
    }


def check_same(ours: Sequence[Event], oracle: Sequence[Event]) -> None:
    mine, plain = said(ours), said(oracle)
    for name in ("logprobs", "prompt"):
        assert mine.pop(name) == pytest.approx(plain.pop(name), abs=1e-4)
    assert mine == plain
    stats = last(ours).stats
    assert stats.emitted == stats.num_accepted_tokens + stats.num_steps + 1 == mine["completion"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    drafts: dict[str, Any] = {"draft": similar(), "cost_curve": FLAT, "draft_curve": CHEAP}
    with tiny_engine(
        eos=frozenset(), prefill_chunk=16, max_running=4, max_nodes=8, observer=Counting(), max_conversations=2, **drafts
    ) as engine:
        check_order(engine)
        yield engine


def check_order(engine: Engine) -> None:
    """Whoever makes room is the youngest that runs, and older than all that wait."""
    worker = engine._scheduler
    preempt = worker.pool.preempt

    def checked_preempt(session: Session) -> None:
        running = [one.generation for one in worker.pool.running]
        ages = [one.submitted_at for one in (*running, *worker.pool.waiting)]
        assert ages == sorted(ages) and session is worker.pool.running[-1]
        preempt(session)

    worker.pool.preempt = checked_preempt  # type: ignore[method-assign]


DRAFTERS = ("none", "racer", "draft_model", "hybrid")
SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.9]),
    seed=st.integers(0, 99),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.sampled_from([(), ((20, 3.0), (30, -100.0))]),
)
REQUESTS = st.builds(
    GenerationRequest,
    st.builds(prompt, st.integers(1, 40), st.sampled_from([10, 15])),
    SAMPLINGS,
    st.builds(StopParams, st.integers(1, 60), min_tokens=st.sampled_from([0, 3])),
    st.builds(SpeculationParams, st.sampled_from(DRAFTERS), fixed_budget=st.booleans()),
    logprobs=st.sampled_from([None, 0, 2]),
    conversation=st.sampled_from([None, None, "c", "d"]),
)
GROUPS = st.builds(
    lambda one, n, scored: [
        replace(
            one, sampling=replace(one.sampling, seed=seed), conversation=None, group=one, prompt_logprobs=scored, logprobs=1
        )
        for seed in range(n)
    ],
    REQUESTS,
    st.integers(2, 3),
    st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.lists(REQUESTS, min_size=1, max_size=4), GROUPS, st.integers(0, 120), st.integers(1, 12))
def test_a_tight_pool_gives_what_plain_decoding_gives_one_at_a_time(
    engine: Engine, requests: list[GenerationRequest], group: list[GenerationRequest], more: int, headroom: int
):
    """more: rows beyond what the largest of them needs by itself."""
    heard = engine.observer
    assert isinstance(heard, Counting)
    requests = [*requests[:1], *group, *requests[1:]]
    oracle = [alone(engine, replace(one, speculation=PLAIN)) for one in requests]
    largest = max(len(one.prompt_ids) + (one.stopping.max_tokens or 0) + 8 for one in requests)
    engine._scheduler.slots.prefixes.clear()
    with pytest.MonkeyPatch.context() as monkeypatch, squeezed(engine, largest + more, headroom):
        slabs = Slabs(monkeypatch)
        heard.read = 0
        events = together(engine, requests)
        wait_until(lambda: engine.status().running == 0)
        assert slabs.most <= (largest + more) * token_bytes(engine, "hybrid")
    for ours, plain in zip(events, oracle, strict=True):
        check_same(ours, plain)
    assert heard.read <= sum(len(one.prompt_ids) for one in requests)  # a prompt that is read again counts once
    assert engine._scheduler.slots.reserved == 0


@pytest.mark.slow
@pytest.mark.parametrize(("drafter", "sampling"), [("none", SEEDED), ("hybrid", GREEDY)])
def test_four_that_outgrow_the_pool_are_served_like_one(engine: Engine, drafter: Any, sampling: SamplingParams):
    requests = [
        GenerationRequest(prompt(20, first), sampling, StopParams(60), SpeculationParams(drafter), logprobs=1)
        for first in (10, 12, 14, 16)
    ]
    oracle = [alone(engine, replace(one, speculation=PLAIN)) for one in requests]
    before = engine.status().preemptions
    with squeezed(engine, 170, headroom=8):
        events = together(engine, requests)
    assert engine.status().preemptions - before >= 3
    for ours, plain in zip(events, oracle, strict=True):
        check_same(ours, plain)


@pytest.mark.slow
def test_one_that_fills_the_pool_by_itself_reads_its_text_again_where_it_cannot_be_copied(engine: Engine):
    request = GenerationRequest(prompt(30), SEEDED, StopParams(170), SpeculationParams("hybrid"))
    oracle = alone(engine, replace(request, speculation=PLAIN))
    before = engine.status().preemptions
    with pytest.MonkeyPatch.context() as monkeypatch, squeezed(engine, 30 + 170 + 8, headroom=40):
        slabs = Slabs(monkeypatch)
        check_same(together(engine, [request])[0], oracle)
        assert slabs.most <= 208 * token_bytes(engine, "hybrid")
    assert 1 <= engine.status().preemptions - before <= 5


def test_answers_held_to_a_grammar_go_on_where_they_stood():
    with json_engine(draft=json_loaded(1), cost_curve=FLAT, draft_curve=CHEAP, max_running=4, max_nodes=8) as engine:
        grammar = engine.codec.grammars.json_schema(SCHEMA)
        ids = tuple(engine.codec.encode("a list: ab, ab, ab"))
        requests = [
            GenerationRequest(ids, SamplingParams(1.2, seed=seed), StopParams(60), SpeculationParams(drafter), grammar=grammar)  # type: ignore[arg-type]
            for seed, drafter in enumerate(DRAFTERS)
        ]
        oracle = [alone(engine, replace(one, speculation=PLAIN)) for one in requests]
        with squeezed(engine, 90):
            events = together(engine, requests)
        assert engine.status().preemptions >= 2
        for ours, plain in zip(events, oracle, strict=True):
            check_same(ours, plain)


def test_csd_drafts_and_rescues_as_if_nothing_had_happened():
    """The drafter's state goes on, so that the trees, and with them what is rescued, are those of an answer alone."""
    csd = CsdConfig(allowed=True, rule="scg", tau=0.4)
    speculation = SpeculationParams("racer", "csd", 8, "paper", fixed_budget=True)
    requests = [GenerationRequest(prompt(20, first), GREEDY, StopParams(80), speculation) for first in (10, 12, 14)]
    with tiny_engine(eos=frozenset(), csd=csd, warm_start=False, prefill_chunk=16, cost_curve=FLAT, max_nodes=8) as engine:
        oracle = [alone(engine, one) for one in requests]
        with squeezed(engine, 170):
            events = together(engine, requests)
        assert engine.status().preemptions >= 2
    assert any(last(sent).stats.rescues for sent in oracle)
    for ours, theirs in zip(events, oracle, strict=True):
        assert said(ours) == said(theirs)
        assert last(ours).stats == last(theirs).stats


@pytest.mark.slow
def test_a_model_with_a_state_of_its_own_kind_goes_on_too():
    with tiny_engine("qwen3-next", eos=frozenset(), max_running=3) as engine:
        requests = [GenerationRequest(prompt(20, first), GREEDY, StopParams(60)) for first in (10, 12, 14)]
        oracle = [alone(engine, one) for one in requests]
        with squeezed(engine, 150):
            events = together(engine, requests)
        assert engine.status().preemptions >= 1
        assert [said(sent)["tokens"] for sent in events] == [said(sent)["tokens"] for sent in oracle]


# -- rounds made by hand: the worker's thread has ended --------------------------------------------------------------------


def test_chats_without_a_limit_run_as_many_as_may() -> None:
    with by_hand(max_running=8) as engine:
        engine._scheduler.slots.headroom = 16
        engine._scheduler.slots.kv_tokens = 2 * (256 + 8)  # twice the longest answer there can be
        asked = [queued(engine, GenerationRequest(prompt(12, 10 + place), GREEDY)) for place in range(10)]
        engine._scheduler.pool.admit()
        assert [session.generation for session in engine._scheduler.pool.running] == asked[:8]
        assert list(engine._scheduler.pool.waiting) == asked[8:]
        assert engine._scheduler.kv_usage == pytest.approx(8 * (12 + 8 + 16) / 528)


def test_first_come_first_served_also_for_those_that_made_room() -> None:
    with by_hand(max_running=3) as engine:
        worker = engine._scheduler
        a, b, c, d = (queued(engine, GenerationRequest(prompt(12, 10 + place), GREEDY, StopParams(40))) for place in range(4))
        rounds(engine, 6)
        first = session_of(engine, a)
        given_up = [session_of(engine, one) for one in (c, b)]
        for session in given_up:
            worker.pool.preempt(session)
        assert list(worker.pool.waiting) == [b, c, d] and worker.pool.running == [first]
        assert [(session.rows, session.cache.capacity) for session in given_up] == [(0, 0)] * 2
        assert worker.slots.reserved == first.rows > 0
        worker.slots.kv_tokens = first.rows + b.most_rows
        rounds(engine, 1)
        assert [session.generation for session in worker.pool.running] == [a, b]
        assert list(worker.pool.waiting) == [c, d]


def test_a_session_that_waits_again_can_be_cancelled() -> None:
    heard: list[Event] = []
    with by_hand() as engine:
        worker = engine._scheduler
        asked = queued(engine, GenerationRequest(prompt(12), GREEDY, StopParams(40), conversation="c"), heard.append)
        rounds(engine, 4)
        worker.pool.preempt(session_of(engine, asked))
        said_so_far = len(asked.answer.tokens)
        assert said_so_far > 1 and worker.drafter_states
        worker.cancel(asked)
        worker.pool.reap()
        assert (last(heard).reason, last(heard).completion_tokens) == ("cancelled", said_so_far)
        assert not worker.pool.waiting and worker.slots.reserved == 0 and not worker.drafter_states


class Pupil:
    """Writes down what a drafter is taught."""

    def __init__(self, drafter: Any) -> None:
        self.heard: list[int] = []
        self.rows: list[tuple[Any, ...]] = []
        observe, learn = drafter.observe, drafter.learn

        def listen(tokens: np.ndarray) -> None:
            self.heard += tokens.tolist()
            observe(tokens)

        def note(tokens: Any, ids: Any, probs: Any, previous: Any) -> None:
            self.rows += zip(tokens.tolist(), ids[:, 0].tolist(), previous.tolist(), strict=True)
            learn(tokens, ids, probs, previous)

        drafter.observe, drafter.learn = listen, note


@pytest.mark.parametrize(("after", "group"), [(0, None), (1, "shared"), (2, None), (3, "shared"), (5, None)])
def test_nothing_is_taught_or_scored_twice(after: int, group: object) -> None:
    """after: rounds until the session gives its rows up; the first three read its prompt."""

    def run(interrupt: bool) -> tuple[list[int], list[Any], dict[str, Any]]:
        heard: list[Event] = []
        speculation = SpeculationParams("racer", max_nodes=8, policy="paper", fixed_budget=True)
        request = GenerationRequest(
            prompt(40), GREEDY, StopParams(30), speculation, logprobs=1, prompt_logprobs=True, group=group
        )
        with by_hand(warm_start=False, max_running=1) as engine:
            asked = queued(engine, request, heard.append)
            engine._scheduler.pool.admit()
            pupil = Pupil(session_of(engine, asked).drafter)
            rounds(engine, after)
            if interrupt:
                engine._scheduler.pool.preempt(session_of(engine, asked))
            while not asked.ended:
                rounds(engine, 1)
        return pupil.heard, pupil.rows, said(heard)

    mine, whole = run(True), run(False)
    assert mine[0] == whole[0] and mine[1] == whole[1]
    assert mine[2]["tokens"] == whole[2]["tokens"] and len(mine[2]["prompt"]) == 40
    assert mine[2]["prompt"] == pytest.approx(whole[2]["prompt"], abs=1e-5)


def test_what_could_exceed_the_whole_pool_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "kv_budget", lambda *_: 120)
    with tiny_engine(eos=frozenset(), max_nodes=24) as engine:
        assert engine.info.max_context == 96
        with pytest.raises(ContextLengthExceeded, match=r"96 tokens.* 20 prompt tokens and 77 to generate"):
            engine.submit(GenerationRequest(prompt(20), GREEDY, StopParams(77)), lambda _: None)
        assert engine.status().waiting == engine.status().running == 0
        fits = GenerationRequest(prompt(20), GREEDY, StopParams(76))
        assert said(together(engine, [fits, fits])[1])["completion"] == 76
