"""Figures of the quality table, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from app.engine.forward.target import PackedTarget
from bench.errors import BenchError
from bench.quality.modes import MODES, parse
from bench.quality.report import as_markdown, build, samples_to_tell, wilson
from bench.quality.run import QualityOutcome, Results, _agreement
from bench.quality.score import mean_log_probability
from tests.models import VOCABULARY
from tests.models import build as build_model

PLAIN = QualityOutcome("p/1", "p", "plain", True, 100, 10.0, 99, 0, 0, 0, 0, False, None, -0.5)
FAST = replace(PLAIN, mode="csd", seconds=4.0, steps=40, accepted=59, drafted=240, rescues=5, agreement=0.4)


def test_a_mode_is_compared_on_the_problems_that_all_modes_answered():
    outcomes = [PLAIN, FAST, replace(PLAIN, problem="p/2", right=False)]
    report = build(outcomes, ["plain", "csd"], seed=0)
    assert report["problems"] == 1
    figures = report["modes"]["csd"]["overall"]
    assert figures["speedup"] == pytest.approx(2.5)
    assert figures["mat"] == pytest.approx(99 / 40)
    assert figures["acceptance_rate"] == pytest.approx(59 / 240)
    assert figures["rescues_per_100_tokens"] == pytest.approx(5.0)
    assert figures["agreement_with_plain"] == pytest.approx(0.4)
    assert (figures["right"], figures["judged"]) == (1, 1)
    assert "| csd | 2.50x |" in as_markdown(report)


def test_answers_that_were_cut_are_counted_and_names_break_no_table():
    outcomes = [replace(PLAIN, task="a|b\nc"), replace(PLAIN, problem="p/2", cut=True)]
    report = build(outcomes, ["plain"], seed=0)
    assert report["modes"]["plain"]["overall"]["cut"] == 1
    assert "| 1 of 2 | - | -0.500 |" in as_markdown(report)
    assert "\n## a\\|b c\n" in as_markdown(report)


def test_a_report_says_how_many_problems_a_difference_takes():
    outcomes = [PLAIN, replace(PLAIN, problem="p/2", right=False), FAST, replace(FAST, problem="p/2")]
    assert "csd: +50 points against plain; to tell that from chance takes 12 problems" in as_markdown(
        build(outcomes, ["plain", "csd"], seed=0)
    )
    assert "from chance" not in as_markdown(build([PLAIN], ["plain"], seed=0))


def test_open_text_has_no_accuracy():
    report = build([replace(PLAIN, right=None)], ["plain"], seed=0)
    assert report["modes"]["plain"]["overall"]["accuracy"] is None
    assert "| - | - |" in as_markdown(report)


def test_the_interval_of_a_share_is_wilsons():
    assert wilson(8, 10) == pytest.approx((0.490, 0.943), abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(10, 10)[1] == 1.0


def test_small_differences_need_many_samples():
    assert samples_to_tell(0.5, 0.1) == 392
    assert samples_to_tell(0.5, 0.0) == 0


def test_results_are_read_back_and_not_mixed_with_another_run(tmp_path: Path):
    results = Results(tmp_path, {"seed": 0})
    results.add(PLAIN, [1, 2, 3])
    results.add(FAST, [1, 2])
    results.close()
    content = results.path.read_bytes()
    results.path.write_bytes(content[:-5])
    again = Results(tmp_path, {"seed": 0})
    assert list(again.outcomes) == [("p/1", "plain")] and again.answers == {"p/1": [1, 2, 3]}
    again.add(FAST, [1, 2])
    again.close()
    assert results.path.read_bytes() == content
    with pytest.raises(BenchError, match="--fresh"):
        Results(tmp_path, {"seed": 1})


def test_agreement_is_the_share_before_the_first_difference():
    assert _agreement([1, 2, 9, 4], [1, 2, 3, 4]) == 0.5
    assert _agreement([1, 2], [1, 2, 3, 4]) == 0.5
    assert _agreement([1, 2, 3, 4], [1, 2]) == 0.5
    assert _agreement([1, 2], [1, 2]) == 1.0
    assert (_agreement([], []), _agreement([], [1])) == (1.0, 0.0)


@pytest.mark.parametrize("chunk", [1, 4, 128])
def test_the_log_probability_is_that_of_one_whole_pass(chunk: int):
    target = PackedTarget(build_model("llama", 0))
    prompt, answer = [3, 4, 5, 6, 7], [8, 9, 10]
    rows = target.native_logits([*prompt, *answer]).log_softmax(-1)
    expected = sum(float(rows[len(prompt) - 1 + at, token]) for at, token in enumerate(answer)) / len(answer)
    assert mean_log_probability(target, prompt, answer, VOCABULARY, chunk) == pytest.approx(expected, abs=1e-5)
    assert mean_log_probability(target, prompt, [], VOCABULARY) is None
    assert torch.isfinite(rows).all()


def test_modes_put_plain_first_and_say_what_they_need():
    assert [mode.name for mode in parse("csd,plain,racer", draft=True)] == ["plain", "csd", "racer"]
    assert not any(mode.needs_draft for mode in parse("racer,racer+csd", draft=False))
    with pytest.raises(BenchError, match="--draft"):
        parse("sd", draft=False)
    with pytest.raises(BenchError, match="unknown mode"):
        parse("fast", draft=True)
    assert all(mode.name == name for name, mode in MODES.items())
