"""CSD in the engine: what is rescued, what never is, and that everything around a rescue stays the target's own choice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate

import pytest

from app.engine.calls import Completion
from app.engine.correction import CsdConfig
from app.engine.engine import Engine
from app.engine.errors import InvalidRequest, ModelLoadError
from app.engine.events import Delta, Event, Finished, StepRecord
from app.engine.forward.target import PackedTarget
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from racer.tree import Source
from tests.engine.drafting import CHEAP, FLAT
from tests.engine.hand import lone_session
from tests.models import build
from tests.tiny import loaded, tiny_engine

PROMPT = tuple(range(10, 22))
ALLOWED = CsdConfig(allowed=True)
EAGER = SpeculationParams("draft_model", "csd", max_nodes=7, fixed_budget=True, rule="scg", tau=1e-12)
PLAIN = SpeculationParams("none")
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.8, seed=3)


def answer(
    engine: Engine, speculation: SpeculationParams, sampling: SamplingParams = GREEDY, stops: tuple[int, ...] = (), n: int = 60
) -> Completion:
    stopping = StopParams(max_tokens=n, stop_token_ids=stops)
    return engine.generate(GenerationRequest(PROMPT, sampling, stopping, speculation))


def choices(tokens: Sequence[int], seed: int = 0) -> list[int]:
    """A model's greedy token at each place of the answer, given what was emitted before it: a fresh pass of the whole.

    seed: 0 for the target, 1 for the draft model.
    """
    logits = PackedTarget(build("llama", seed)).native_logits([*PROMPT, *tokens])
    return [int(row.argmax()) for row in logits[len(PROMPT) - 1 : -1]]


@pytest.mark.parametrize("drafter", ["draft_model", "hybrid", "racer"])
def test_only_rescued_tokens_differ_from_the_targets_choice_on_the_emitted_text(drafter: str):
    speculation = SpeculationParams(drafter, "csd", max_nodes=12, fixed_budget=True, rule="scg", tau=1e-12)  # type: ignore[arg-type]
    with tiny_engine(eos=frozenset(), draft=loaded(seed=1), csd=ALLOWED, cost_curve=FLAT, draft_curve=CHEAP) as engine:
        done = answer(engine, speculation)
    differing = sum(token != choice for token, choice in zip(done.token_ids, choices(done.token_ids), strict=True))
    assert differing == done.finished.stats.rescues
    assert done.finished.stats.verifier == "csd"
    if drafter != "racer":
        assert differing > 5


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["draft_model", "hybrid", "racer"])
@pytest.mark.parametrize(
    ("sampling", "limits"),
    [
        (GREEDY, {"lambda_": math.inf}),
        (GREEDY, {"tau": 1.0, "rule": "scg"}),
        (GREEDY, {"verifier": "exact"}),
        (SEEDED, {"lambda_": math.inf}),  # not tau = 1: a sampled token may be less likely than a draft
        (SEEDED, {"verifier": "exact"}),
    ],
)
def test_without_room_for_a_rescue_the_answer_is_plains(drafter: str, sampling: SamplingParams, limits: dict[str, object]):
    speculation = SpeculationParams(**{"drafter": drafter, "verifier": "csd", **limits})  # type: ignore[arg-type]
    with tiny_engine(eos=frozenset(), draft=loaded(seed=1), csd=ALLOWED, cost_curve=FLAT, draft_curve=CHEAP) as engine:
        assert answer(engine, speculation, sampling).token_ids == answer(engine, PLAIN, sampling).token_ids


@pytest.mark.slow
def test_the_memory_learns_while_serving_and_then_nominates():
    with tiny_engine(eos=frozenset(), draft=loaded(seed=1), csd=ALLOWED, cost_curve=FLAT, draft_curve=CHEAP) as engine:
        assert engine.corrections is not None
        chain = SpeculationParams("draft_model", "exact", max_nodes=7, fixed_budget=True)
        plain = answer(engine, PLAIN).token_ids
        assert len(engine.corrections.memory) == 0
        for _ in range(8):
            assert answer(engine, chain).token_ids == plain
        assert len(engine.corrections.memory) > 0
        bold = SpeculationParams("draft_model", "csd", max_nodes=7, fixed_budget=True, tau=1e-12)
        assert answer(engine, bold).finished.stats.rescues > 0
        assert answer(engine, SpeculationParams("draft_model", "csd", lambda_=1e6)).token_ids == plain
        status = engine.status().store
        assert status is not None and status.entries == len(engine.corrections.memory) and status.state == "off"


def test_stop_tokens_neither_are_rescued_nor_give_way():
    with tiny_engine(eos=frozenset(), draft=loaded(seed=1), csd=ALLOWED, cost_curve=FLAT, draft_curve=CHEAP) as engine:
        free = answer(engine, EAGER)
        rescued = [t for t, choice in zip(free.token_ids, choices(free.token_ids), strict=True) if t != choice]
        stop = rescued[0]
        stopped = answer(engine, EAGER, stops=(stop,))
        at = stopped.token_ids
        assert at != free.token_ids
    differing = [pair for pair in zip(at, choices(at), strict=True) if pair[0] != pair[1]]
    assert differing
    assert not [pair for pair in differing if stop in pair]
    assert stop not in at[:-1]  # where the target chose it, the answer ended


def test_no_special_token_is_ever_emitted_by_a_rescue():
    eos = frozenset({2})
    with tiny_engine(eos=eos, draft=loaded(seed=1), csd=ALLOWED, cost_curve=FLAT, draft_curve=CHEAP) as engine:
        done = answer(engine, EAGER, n=120)
    differing = [pair for pair in zip(done.token_ids, choices(done.token_ids), strict=True) if pair[0] != pair[1]]
    assert differing
    assert not [pair for pair in differing if {0, 1, 2} & set(pair)]


class Heard:
    """An observer that keeps the steps, and what the client was sent of the last answer."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.deltas: list[Delta] = []

    def step(self, record: StepRecord) -> None:
        self.steps.append(record)

    def __getattr__(self, name: str) -> object:
        return lambda *_: None

    @property
    def rescued(self) -> list[int]:
        """Places in the answer that were marked as rescued."""
        starts = accumulate((len(delta.token_ids) for delta in self.deltas), initial=0)
        return [start + place for start, delta in zip(starts, self.deltas, strict=False) for place in delta.rescued]

    @property
    def tokens(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]


@contextmanager
def heard_engine() -> Iterator[tuple[Engine, Heard]]:
    heard = Heard()
    with tiny_engine(
        eos=frozenset(), draft=loaded(seed=1), csd=ALLOWED, cost_curve=FLAT, draft_curve=CHEAP, observer=heard
    ) as engine:
        yield engine, heard


def ask(engine: Engine, heard: Heard, speculation: SpeculationParams, stop: tuple[str, ...] = ()) -> Finished:
    heard.steps = []
    request = GenerationRequest(PROMPT, GREEDY, StopParams(max_tokens=60, stop=stop), speculation)
    events = list(engine.stream(request))
    heard.deltas = [event for event in events if isinstance(event, Delta)]
    (finished,) = (event for event in events if isinstance(event, Finished))
    return finished


def test_the_counts_of_steps_and_answers_agree():
    with heard_engine() as (engine, heard):
        stats = ask(engine, heard, replace(EAGER, tau=0.3)).stats
    steps = heard.steps
    assert stats.rescues == sum(step.rescues for step in steps) == len(heard.rescued) > max(step.rescues for step in steps) > 0
    refused = [step.refused_by_gate for step in steps]
    assert stats.refused_by_gate == sum(refused) > max(refused) > 0
    assert sum(step.nominated for step in steps) == stats.rescues + stats.refused_by_gate  # of a chain, each mismatch is one
    assert len(heard.tokens) == stats.num_accepted_tokens + stats.num_steps + 1


def test_a_rescue_that_completes_a_stop_string_is_reported():
    with heard_engine() as (engine, heard):
        ask(engine, heard, EAGER)
        free = heard.tokens
        place = next(at for at in heard.rescued if free.index(free[at]) == at)
        finished = ask(engine, heard, EAGER, (engine.codec.decode([free[place]]),))
    stats = finished.stats
    assert (finished.reason, heard.tokens) == ("stop", free[: place + 1])
    assert heard.rescued[-1] == place
    assert stats.rescues == len(heard.rescued) == sum(step.rescues for step in heard.steps)
    assert stats.emitted == stats.num_accepted_tokens + stats.num_steps + 1 == sum(stats.tokens_by_source.values())
    assert stats.tokens_by_source["target"] == stats.num_steps + 1


def test_a_rescued_token_that_the_answer_is_cut_at_is_marked_and_counts_as_the_last_of_its_step():
    codec = loaded().codec
    heard: list[Event] = []
    request = GenerationRequest(PROMPT, GREEDY, StopParams(max_tokens=9, stop=("b",)))
    session = lone_session(request, codec, 8, 9, heard.append)
    drafted = [Source.DRAFT_MODEL, Source.DRAFT_MODEL, Source.TARGET]
    assert len(session.emit(codec.encode("abc"), drafted, rescued=(0, 1)).token_ids) == 2
    (delta,) = heard
    assert isinstance(delta, Delta)
    assert (delta.sources, delta.rescued) == (("draft_model", "target"), (0, 1))


@pytest.mark.parametrize(
    ("speculation", "param"),
    [
        (SpeculationParams("racer", "csd", lambda_=-1.0), "speculative.lambda"),
        (SpeculationParams("racer", "csd", tau=0.0), "speculative.tau"),
        (SpeculationParams("racer", "csd", tau=1.5), "speculative.tau"),
        (SpeculationParams("racer", "csd", lambda_=math.nan), "speculative.lambda"),
        (SpeculationParams("racer", "exact", tau=0.5), "speculative.tau"),
        (SpeculationParams("racer", rule="ocm"), "speculative.rule"),
    ],
)
def test_values_that_cannot_be_are_refused(speculation: SpeculationParams, param: str):
    with tiny_engine(csd=ALLOWED, cost_curve=FLAT, draft_curve=CHEAP) as engine, pytest.raises(InvalidRequest) as caught:
        answer(engine, speculation)
    assert caught.value.param == param


def test_a_server_that_does_not_allow_csd_refuses_it_and_keeps_no_memory():
    with tiny_engine() as engine:
        assert engine.corrections is None and engine.status().store is None
        with pytest.raises(InvalidRequest) as caught:
            answer(engine, SpeculationParams("racer", "csd"))
        assert caught.value.param == "speculative.verifier"
    with pytest.raises(ModelLoadError, match="allow_csd"), tiny_engine(verifier="csd"):
        pass


def test_rescuing_sessions_draft_from_the_prior_rows_too_and_learn_apart():
    with tiny_engine(eos=frozenset(), csd=ALLOWED, cost_curve=FLAT, prior_rows=64) as engine:
        assert engine.instruments.settle(60.0)
        exact, rescuing = engine._drafters.shared, engine._drafters.shared_csd
        assert (exact.prior_ids >= 0).all() and rescuing.prior_ids is exact.prior_ids
        assert rescuing.prior_probs is exact.prior_probs and rescuing.acceptance is not exact.acceptance


@pytest.mark.slow
def test_the_table_of_a_draft_model_learns_from_that_model_alone():
    with tiny_engine(eos=frozenset(), draft=loaded(seed=1), csd=ALLOWED, cost_curve=FLAT, draft_curve=CHEAP) as engine:
        assert engine.corrections is not None
        answer(engine, SpeculationParams("racer", max_nodes=12, fixed_budget=True), SamplingParams(1.5, seed=1))
        assert len(engine.corrections.memory) == 0
        answer(engine, SpeculationParams("draft_model", max_nodes=7, fixed_budget=True))
        assert len(engine.corrections.memory) > 0
    with tiny_engine(eos=frozenset(), csd=ALLOWED, cost_curve=FLAT) as engine:
        assert engine.corrections is not None
        answer(engine, SpeculationParams("racer", max_nodes=12, fixed_budget=True))
        assert len(engine.corrections.memory) > 0


def test_the_table_of_a_draft_model_rescues_that_models_tokens_alone():
    with heard_engine() as (engine, heard):
        assert engine.corrections is not None
        engine.corrections.memory.merge([(a, b, 100.0) for a in range(97) for b in range(97) if a != b])
        mixed = SpeculationParams("hybrid", "csd", max_nodes=16, fixed_budget=True, rule="ocm")
        stats = ask(engine, heard, mixed).stats
        rescued = [delta.sources[place] for delta in heard.deltas for place in delta.rescued]
        assert stats.rescues == rescued.count("draft_model") == len(rescued) > 1
        assert ask(engine, heard, replace(mixed, drafter="racer")).stats.rescues == 0
        assert ask(engine, heard, replace(mixed, drafter="racer", rule="scg", tau=1e-12)).stats.rescues > 0


FORCING = [
    SamplingParams(0.0, logit_bias=((60, 1.0),)),
    SamplingParams(0.0, presence_penalty=2.0),
    SamplingParams(0.0, frequency_penalty=1.0),
    SamplingParams(0.0, repetition_penalty=1.5),
    SamplingParams(0.2, seed=2, logit_bias=((60, 1.0),)),
]


@pytest.mark.slow
def test_what_a_request_forces_makes_no_pair_rescuable_for_others():
    """A client sends the same request again and again, with a bias or a penalty under which target and draft differ."""
    chain = {"max_nodes": 7, "fixed_budget": True}
    with tiny_engine(eos=frozenset(), draft=loaded(seed=1), csd=ALLOWED, cost_curve=FLAT, draft_curve=CHEAP) as engine:
        assert engine.corrections is not None
        for sampling in FORCING:
            for verifier in ("exact", "csd"):
                speculation = SpeculationParams("draft_model", verifier, rule="scg" if verifier == "csd" else None, **chain)  # type: ignore[arg-type]
                for _ in range(8 if sampling is FORCING[0] else 1):
                    stats = answer(engine, speculation, sampling, n=20).finished.stats
                    assert stats.num_accepted_tokens - stats.rescues < stats.num_draft_tokens
        assert engine.corrections.memory.recorded == 0
        bold = SpeculationParams("draft_model", "csd", rule="ocm", lambda_=20, **chain)  # type: ignore[arg-type]
        victim = answer(engine, bold, n=20)  # too short to learn a pair often enough by itself
        assert engine.corrections.memory.recorded > 0
    assert victim.finished.stats.rescues == 0
    assert list(victim.token_ids) == choices(victim.token_ids)


@pytest.mark.slow
def test_of_sampled_answers_only_divergences_between_what_both_models_find_likeliest_are_learnt():
    likeliest: set[tuple[int, int]] = set()
    with tiny_engine(eos=frozenset(), draft=loaded(seed=1), csd=ALLOWED, cost_curve=FLAT, draft_curve=CHEAP) as engine:
        assert engine.corrections is not None
        for seed in range(4):
            tokens = answer(
                engine, SpeculationParams("draft_model", max_nodes=7), SamplingParams(0.2, seed=seed), n=40
            ).token_ids
            likeliest |= set(zip(choices(tokens, seed=1), choices(tokens), strict=True))
        learnt = {entry[:2] for entry in engine.corrections.memory.entries()}
    assert learnt and learnt <= likeliest
