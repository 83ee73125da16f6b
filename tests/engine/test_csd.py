"""CSD in the engine: what is rescued, what never is, and that everything around a rescue stays the target's own choice."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from app.engine.calls import Completion
from app.engine.correction import CsdConfig
from app.engine.engine import Engine
from app.engine.errors import InvalidRequest, ModelLoadError
from app.engine.events import Delta, Event, StepRecord
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.engine.session import Session
from app.engine.target import PackedTarget
from racer.tree import Source
from tests.engine.drafting import CHEAP, FLAT
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


def choices(tokens: Sequence[int]) -> list[int]:
    """The target's greedy token at each place of the answer, given what was emitted before it: a fresh pass of the whole."""
    logits = PackedTarget(build("llama", 0)).native_logits([*PROMPT, *tokens])
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
        if stop in at:  # the target's own choice
            assert at[-1] == stop and choices(at)[-1] == stop


def test_no_special_token_is_ever_emitted_by_a_rescue():
    eos = frozenset({2})
    with tiny_engine(eos=eos, draft=loaded(seed=1), csd=ALLOWED, cost_curve=FLAT, draft_curve=CHEAP) as engine:
        done = answer(engine, EAGER, n=120)
    for token, choice in zip(done.token_ids, choices(done.token_ids), strict=True):
        if token != choice:
            assert token not in {0, 1, 2} and choice not in {0, 1, 2}


def test_the_counts_of_steps_and_answers_agree():
    class Sum:
        def __init__(self) -> None:
            self.steps: list[StepRecord] = []

        def step(self, record: StepRecord) -> None:
            self.steps.append(record)

        def __getattr__(self, name: str) -> object:
            return lambda *_: None

    heard = Sum()
    with tiny_engine(
        eos=frozenset(), draft=loaded(seed=1), csd=ALLOWED, cost_curve=FLAT, draft_curve=CHEAP, observer=heard
    ) as engine:
        done = answer(engine, EAGER)
    stats = done.finished.stats
    assert stats.rescues == sum(step.rescues for step in heard.steps) > 0
    assert stats.refused_by_gate == sum(step.refused_by_gate for step in heard.steps)
    assert sum(step.nominated for step in heard.steps) >= stats.rescues
    assert len(done.token_ids) == stats.num_accepted_tokens + stats.num_steps + 1


def test_a_rescued_token_that_the_answer_is_cut_at_counts_as_the_targets_alone():
    codec = loaded().codec
    heard: list[Event] = []
    session = Session(GenerationRequest(PROMPT, GREEDY, StopParams(max_tokens=9, stop=("b",))), heard.append, codec, 8, 9)
    drafted = [Source.DRAFT_MODEL, Source.DRAFT_MODEL, Source.TARGET]
    assert session.emit(codec.encode("abc"), drafted, rescued=(0, 1)) == 2
    (delta,) = heard
    assert isinstance(delta, Delta)
    assert (delta.sources, delta.rescued, session.counts.rescues) == (("draft_model", "target"), (0,), 1)


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
        assert engine.settle(60.0)
        exact, rescuing = engine._shared, engine._shared_csd
        assert (exact.prior_ids >= 0).all() and rescuing.prior_ids is exact.prior_ids
        assert rescuing.prior_probs is exact.prior_probs and rescuing.acceptance is not exact.acceptance


def test_the_table_of_a_draft_model_learns_from_that_model_alone():
    with tiny_engine(eos=frozenset(), draft=loaded(seed=1), csd=ALLOWED, cost_curve=FLAT, draft_curve=CHEAP) as engine:
        assert engine.corrections is not None
        answer(engine, SpeculationParams("racer", max_nodes=12, fixed_budget=True), SamplingParams(1.5, seed=1))
        assert len(engine.corrections.memory) == 0
        answer(engine, SpeculationParams("draft_model", max_nodes=7, fixed_budget=True))
        assert len(engine.corrections.memory) > 0
    with tiny_engine(eos=frozenset(), csd=ALLOWED, cost_curve=FLAT) as engine:
        assert engine.corrections is not None
        answer(engine, SpeculationParams("racer", max_nodes=12, fixed_budget=True), SamplingParams(1.5, seed=1))
        assert len(engine.corrections.memory) > 0
