"""What the engine verifies under an injected cost curve, and what it prepares while idle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.engine.cost.measure import Probe, measure
from app.engine.cost.measurements import Measurements
from app.engine.cost.neighbours import CpuUsage
from app.engine.engine import Engine, EngineConfig
from app.engine.events import StepRecord
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from tests.tiny import loaded, tiny_engine
from tests.waiting import wait_until

FLAT = ((1, 0.02), (64, 0.02))
LINEAR = ((1, 0.02), (64, 1.28))
PROMPT = "abcabcabcabcabc"


class Steps:
    """An observer that keeps the steps."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []

    def step(self, record: StepRecord) -> None:
        self.records.append(record)

    def __getattr__(self, name: str):
        return lambda *_: None


def run(engine: Engine, **speculation: object):
    ids = tuple(engine.codec.encode(PROMPT))
    request = GenerationRequest(ids, SamplingParams(0.0), StopParams(60), SpeculationParams(**speculation))  # type: ignore[arg-type]
    return engine.generate(request)


@pytest.mark.parametrize(("curve", "full"), [(FLAT, True), (LINEAR, False)])
def test_a_flat_curve_gives_the_full_tree_and_a_linear_one_plain_decoding(curve, full: bool):
    steps = Steps()
    with tiny_engine(eos=frozenset(), cost_curve=curve, observer=steps) as engine:
        done = run(engine)
        plain = run(engine, drafter="none")
        assert done.token_ids == plain.token_ids
        assert engine.instruments.cost_curve == [(n, seconds) for n, seconds in curve]  # an injected curve is not corrected
    drafted = [record.drafted for record in steps.records[: done.finished.stats.num_steps]]
    if full:
        assert max(drafted) == 23
        assert sum(drafted) > 10 * len(drafted)
    else:
        assert set(drafted) == {0}


def test_the_same_curve_gives_the_same_steps():
    outcomes = []
    for _ in range(2):
        with tiny_engine(eos=frozenset(), cost_curve=((1, 0.02), (8, 0.025), (64, 0.1))) as engine:
            outcomes.append(run(engine).finished.stats)
    assert outcomes[0] == outcomes[1]


def test_a_fixed_budget_is_verified_whatever_it_costs():
    with tiny_engine(eos=frozenset(), cost_curve=LINEAR) as engine:
        assert run(engine, fixed_budget=True, max_nodes=8).finished.stats.num_draft_tokens > 0


@pytest.mark.parametrize(
    "policy", ["retrieval", "copy_logit", "last_logit", "half", "fallback", "pld", "recycling", "paper", "auto"]
)
def test_every_policy_keeps_the_answer(policy: str):
    with tiny_engine(eos=frozenset(), cost_curve=FLAT) as engine:
        for sampling in (SamplingParams(0.0), SamplingParams(0.8, seed=5)):
            ids = tuple(engine.codec.encode(PROMPT))
            answers = [
                engine.generate(GenerationRequest(ids, sampling, StopParams(50), speculation)).token_ids
                for speculation in (SpeculationParams("none"), SpeculationParams(policy=policy))  # type: ignore[arg-type]
            ]
            assert answers[0] == answers[1]


def test_the_curve_is_measured_kept_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = loaded()
    measurements = Measurements(tmp_path, model, read=lambda: None)
    assert measurements.load() is None
    with Engine(model, EngineConfig(max_nodes=8, prior_rows=0), measurements=measurements) as engine:
        measured = engine.instruments.cost_curve
    assert measured is not None
    assert [n for n, _ in measured][:3] == [1, 2, 3]
    assert all(seconds > 0 for _, seconds in measured)
    monkeypatch.setattr(Probe, "step", lambda *_: pytest.fail("measured again"))
    kept = measurements.load()
    assert kept is not None
    assert measure(Probe(engine._decoder.target, 97, 8, 256), measurements).sizes.tolist() == [n for n, _ in measured]
    next((tmp_path / "measured").glob("*.json")).write_text("{damaged")
    assert measurements.load() is None


def test_a_curve_measured_beside_other_programs_is_used_and_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    model = loaded()
    readings = iter((CpuUsage(0.0, 100.0, 5.0), CpuUsage(10.0, 112.0, 7.0)))  # 12 seconds of work in 10, 2 of them its own
    measurements = Measurements(tmp_path, model, read=lambda: next(readings))
    measurements.spare = 0
    caplog.set_level("INFO", "app.engine.cost.measure")
    with Engine(model, EngineConfig(max_nodes=8, prior_rows=0), measurements=measurements) as engine:
        assert engine.instruments.cost_curve is not None
    assert measurements.load() is None
    assert [record.getMessage() for record in caplog.records if "next start measures again" in record.getMessage()] == [
        "other programs used 1.0 cores meanwhile: these costs are not kept, the next start measures again"
    ]


def test_prior_rows_are_the_targets_successors_of_each_token_alone_and_are_kept(tmp_path: Path):
    model = loaded()
    measurements = Measurements(tmp_path, model)
    with Engine(model, EngineConfig(max_nodes=8, prior_rows=50, cost_curve=FLAT), measurements=measurements) as engine:
        assert engine.instruments.settle(timeout=60)
        ids, probs = engine._drafters.shared.prior_ids.copy(), engine._drafters.shared.prior_probs.copy()
        assert ids.shape == (50, 8)
        for token in (0, 7, 49):
            logits = engine._decoder.target.native_logits([1, token])[-1]  # type: ignore[attr-defined]
            assert ids[token].tolist() == logits.topk(8).indices.tolist()
            assert probs[token, 0] == pytest.approx(float(logits.softmax(-1).max()), rel=1e-3)
    with Engine(loaded(), EngineConfig(max_nodes=8, prior_rows=97, cost_curve=FLAT), measurements=measurements) as engine:
        assert np.array_equal(engine._drafters.shared.prior_ids[:50], ids)
        assert engine.instruments.settle(timeout=60)
        plain = run(engine, drafter="none")
        assert run(engine, max_nodes=8).token_ids == plain.token_ids


def test_idle_work_that_fails_is_given_up_and_harms_nobody(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def fail(*_: object) -> None:
        raise RuntimeError("made to fail")

    monkeypatch.setattr("app.engine.cost.prior.PriorRows.advance", fail)
    with tiny_engine(eos=frozenset(), prior_rows=50) as engine:
        assert run(engine).finished.completion_tokens == 60
        wait_until(lambda: not engine._scheduler.prepares)
        assert run(engine).finished.completion_tokens == 60
    assert caplog.text.count("idle work failed") == 1
