"""The speedup gauge against a plain run, on a clock that only the model's forwards move: nothing is timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.engine.engine import EngineConfig
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.metrics import Metrics
from bench.benchmark import Benchmark
from bench.errors import BenchError
from bench.gauge import GaugeCheck, check, measure
from tests.bench.support import plan, write_questions
from tests.tiny import loaded, tiny_engine

CALIBRATED = ((1, 0.030), (8, 0.032), (64, 0.070))
PROMPTS = [[5 + (number * place) % 60 for place in range(12)] for number in range(1, 5)]


class MachineClock:
    """A machine on which a forward of n rows takes cost(n) seconds, and nothing else takes any."""

    def __init__(self, engine: Any, cost: Callable[[int], float]) -> None:
        self.now = 0.0
        decoder = engine._decoder
        forward = decoder.target.forward

        def timed(parts: Any) -> Any:
            self.now += cost(sum(len(part.tokens) for part in parts))
            return forward(parts)

        decoder.clock = self
        decoder.target.forward = timed

    def __call__(self) -> float:
        return self.now


def calibrated(rows: int) -> float:
    (_, one), (_, eight), (_, most) = CALIBRATED
    return one + (eight - one) * (rows - 1) / 7 if rows <= 8 else eight + (most - eight) * (rows - 8) / 56


def checked(tmp_path: Path, mode: str, cost: Callable[[int], float], *, refine: bool = False) -> GaugeCheck:
    wanted = plan(write_questions(tmp_path / "q.jsonl", "a"), mode, max_tokens=120)
    config = EngineConfig(max_nodes=32, warm_start=False, prior_rows=0, cost_curve=CALIBRATED)
    with Benchmark(wanted, loaded(eos=frozenset()), config=config) as benchmark:
        assert benchmark.engine._decoder.costs is not None
        benchmark.engine._decoder.costs.refine = refine  # as where the curve was measured
        return check(benchmark, PROMPTS, MachineClock(benchmark.engine, cost))


@pytest.mark.parametrize("mode", ["auto", "paper:16", "pld"])
def test_on_the_machine_that_was_calibrated_gauge_and_clock_agree(tmp_path: Path, mode: str) -> None:
    found = checked(tmp_path, mode, calibrated)
    assert found.tokens == 4 * 119
    assert found.measured > 1.1
    assert found.counters == pytest.approx(found.measured)
    assert found.plain_step_seconds == pytest.approx(0.030)


@pytest.mark.parametrize("factor", [0.7, 1.5])
def test_on_a_machine_that_got_faster_or_slower_they_agree_within_a_tenth(tmp_path: Path, factor: float) -> None:
    found = checked(tmp_path, "auto", lambda rows: factor * calibrated(rows), refine=True)
    assert abs(found.error) < 0.1
    assert found.gauge == pytest.approx(found.measured, rel=0.1)
    assert found.plain_step_seconds == pytest.approx(factor * 0.030, rel=0.1)


@pytest.mark.parametrize("refine", [False, True])
def test_a_loss_reads_as_a_loss(tmp_path: Path, refine: bool) -> None:
    """The curve blames the machine for what large steps take too long; the plain steps in between put the base right."""
    found = checked(tmp_path, "copy_logit:32", lambda rows: calibrated(rows) if rows == 1 else 0.5, refine=refine)
    assert found.measured < 0.25
    assert found.counters < 0.5


def test_sessions_that_share_a_step_are_compared_with_plain_sessions_that_share_one() -> None:
    """Three equally long answers in one batch: plain steps of three rows are the base, not three steps of one."""

    def run(drafter: str) -> tuple[Metrics, float]:
        metrics = Metrics()
        with tiny_engine(eos=frozenset(), cost_curve=CALIBRATED, max_running=3, max_nodes=16, observer=metrics) as engine:
            clock = MachineClock(engine, calibrated)
            greedy, stopping = SamplingParams(temperature=0.0), StopParams(max_tokens=60)
            prompt = tuple(PROMPTS[0])
            speculation = SpeculationParams(drafter, policy="paper", max_nodes=16, fixed_budget=True)  # type: ignore[arg-type]
            if drafter == "none":
                speculation = SpeculationParams("none")
            engine.generate_all([GenerationRequest(prompt, greedy, stopping, speculation)] * 3)
            return metrics, clock.now

    def seconds(metrics: Metrics, name: str) -> float:
        value = metrics.registry.get_sample_value(f"racer_{name}_seconds_total")
        assert value is not None
        return value

    plain, _ = run("none")
    fast, _ = run("racer")
    assert seconds(plain, "plain_equivalent") == pytest.approx(seconds(plain, "decode"))
    measured = seconds(plain, "decode") / seconds(fast, "decode")
    assert seconds(fast, "plain_equivalent") / seconds(fast, "decode") == pytest.approx(measured, rel=0.1)


def test_a_peer_has_no_gauge(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="mode of ours"):
        checked(tmp_path, "hf-plain", calibrated)


def test_the_report_names_all_three_figures() -> None:
    text = GaugeCheck(1.52, 1.49, 1.6, 3, 300, 4.0, 0.03, 0.98).describe()
    assert all(figure in text for figure in ("1.600", "1.520 (-5.0%)", "1.490", "0.980", "0.0300"))
    assert math.isclose(GaugeCheck(1.1, 1.0, 1.0, 1, 1, 1.0, 0.03, 1.0).error, 0.1)


@pytest.mark.parametrize(
    ("counters", "others", "code", "said"),
    [
        (1.05, 0.0, 0, ""),
        (1.05, 1.3, 0, "other programs used 1.3 cores meanwhile (python 1.1, sh 0.2)"),
        (1.2, 0.0, 1, "more than 10% off the clock"),
        (0.8, 1.3, 3, "other programs used 1.3 cores meanwhile (python 1.1, sh 0.2)"),
        (0.8, 1.3, 3, "measure again on a quiet machine"),
    ],
)
def test_a_difference_beside_other_work_is_not_laid_to_the_gauge(counters: float, others: float, code: int, said: str) -> None:
    found = GaugeCheck(counters, 1.0, 1.0, 1, 1, 1.0, 0.03, 1.0, others, {"python": 1.1, "sh": 0.2})
    assert found.exit_code == code
    assert said in found.describe()
    assert ("quiet machine" in found.describe()) is (code == 3)
    assert ("off the clock" in found.describe()) is (code == 1)


@pytest.mark.parametrize(("while_calibrated", "meanwhile"), [(0.0, 0.0), (1.5, 0.0), (0.0, 1.5), (0.5, 1.5)])
def test_load_counts_from_the_calibration_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, while_calibrated: float, meanwhile: float
) -> None:
    def disturbed(benchmark: Benchmark, prompts: Any) -> GaugeCheck:
        assert benchmark.measurements is not None and len(prompts) == 1
        benchmark.measurements.disturbed = while_calibrated
        return GaugeCheck(2.0, 1.0, 1.0, 1, 1, 1.0, 0.03, 1.0)

    monkeypatch.setattr("bench.gauge.check", disturbed)
    monkeypatch.setattr("bench.gauge.load_model", lambda *_, **__: loaded())
    monkeypatch.setattr("app.engine.cost.measure.Probe.step", lambda *_: 0.02)
    monkeypatch.setattr("app.engine.cost.neighbours.disturbance", lambda *_: meanwhile)
    monkeypatch.setattr("app.engine.cost.neighbours.busiest", lambda *_: {"make": 1.5})
    found = measure(plan(write_questions(tmp_path / "q.jsonl", "a"), "auto", prior_rows=0))
    assert found.others == max(while_calibrated, meanwhile)
    assert found.exit_code == (3 if found.others else 1)
    assert found.programs == {"make": 1.5}
