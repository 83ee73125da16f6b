"""The figures of a report, from results made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.plan import Plan
from bench.questions import Question
from bench.report import build, write
from bench.result import Result
from bench.statistics import bootstrap_median, median
from tests.bench.support import plan, result, write_questions

SPEEDUPS = {"a": 2.0, "b": 4.0, "c": 1.0}


def questions(turns: int = 1) -> list[Question]:
    return [Question(key, "qa" if key == "a" else "math", ("x",) * turns) for key in SPEEDUPS]


def results() -> list[Result]:
    """plain needs 1, 2 and 3 seconds for 9 tokens; paper:8 is faster by SPEEDUPS, and differs on c from token 4 on."""
    made = []
    for number, (key, speedup) in enumerate(SPEEDUPS.items(), start=1):
        made.append(result(key, "plain", range(9), float(number)))
        made.append(result(key, "paper:8", [*range(4), 99] if key == "c" else range(9), number / speedup))
    return made


@pytest.fixture
def wanted(tmp_path: Path) -> Plan:
    return plan(write_questions(tmp_path / "q.jsonl", ["qa"]))


def overall(wanted: Plan) -> dict[str, Any]:
    report = build(wanted, questions(), results(), {})
    found: dict[str, Any] = report["modes"]["paper:8"]["overall"]
    return found


def test_speedup_is_the_median_of_ratios_of_tokens_per_second(wanted: Plan) -> None:
    # c: 5 tokens in 3 s against 9 in 3 s
    figures = overall(wanted)
    assert figures["speedup"] == pytest.approx(2.0)
    assert figures["speedup_low"] == pytest.approx(5 / 9)
    assert figures["speedup_high"] == pytest.approx(4.0)
    assert figures["speedup_total"] == pytest.approx((23 / 4.0) / (27 / 6.0))
    assert figures["speedup_total_low"] < figures["speedup_total"] < figures["speedup_total_high"]
    assert figures["tokens_per_s"] == pytest.approx(23 / 4.0)
    assert (figures["questions"], figures["tokens"]) == (3, 23)


def test_decode_speedup_leaves_the_prefill_out(wanted: Plan) -> None:
    assert overall(wanted)["speedup_decode"] == pytest.approx(2.0)
    assert overall(wanted)["tokens_per_s_decode"] == pytest.approx(20 / 3.6)


def test_mat_is_over_steps_and_mat_mean_over_questions(wanted: Plan) -> None:
    uneven = [result("a", mode, range(9), 1.0) for mode in ("plain", "paper:8")]
    uneven += [result("b", mode, range(4), 1.0) for mode in ("plain", "paper:8")]  # 3 tokens in 1 step
    figures = build(wanted, questions(), uneven, {})["modes"]["paper:8"]["overall"]
    assert figures["mat"] == pytest.approx(11 / 5)
    assert figures["mat_mean"] == pytest.approx((8 / 4 + 3) / 2)
    assert figures["drafted_per_step"] == 4.0


def test_equality_counts_questions_and_names_the_first_divergence(wanted: Plan) -> None:
    assert overall(wanted)["equal_to_plain"] == pytest.approx(2 / 3)
    assert overall(wanted)["first_divergence"] == 4
    plain = build(wanted, questions(), results(), {})["modes"]["plain"]["overall"]
    assert (plain["equal_to_plain"], plain["first_divergence"], plain["speedup"]) == (1.0, None, 1.0)


def test_the_first_divergence_is_the_earliest_of_all_questions(wanted: Plan) -> None:
    own = {"a": [*range(6), 99], "b": [0, 1, 99], "c": range(9)}
    made = [result(key, "plain", range(9), 1.0) for key in own]
    made += [result(key, "paper:8", tokens, 1.0) for key, tokens in own.items()]
    figures = build(wanted, questions(), made, {})["modes"]["paper:8"]["overall"]
    assert (figures["equal_to_plain"], figures["first_divergence"]) == (pytest.approx(1 / 3), 2)


def test_an_answer_that_ends_earlier_is_not_equal(wanted: Plan) -> None:
    short = [result("a", "plain", range(9), 1.0), result("a", "paper:8", range(7), 1.0)]
    figures = build(wanted, questions(), short, {})["modes"]["paper:8"]["overall"]
    assert (figures["equal_to_plain"], figures["first_divergence"]) == (0.0, 7)


def test_names_that_are_no_names_break_no_report(tmp_path: Path) -> None:
    wanted = plan(write_questions(tmp_path / "q.jsonl", ["qa"]), modes="plain")
    asked = Question("a", "a|b\n$\\x$", ("x",))
    report = build(wanted, [asked], [result("a", "plain", range(9), 1.0, category=asked.category)], {})
    write(report, tmp_path)
    assert "| mode | a\\|b $\\x$ | overall |" in (tmp_path / "report.md").read_text()


def test_categories_phases_sources_and_histogram(wanted: Plan) -> None:
    mode = build(wanted, questions(), results(), {})["modes"]["paper:8"]
    assert list(mode["categories"]) == ["qa", "math"]
    assert mode["categories"]["qa"]["speedup"] == pytest.approx(2.0)
    assert mode["categories"]["math"]["questions"] == 2
    steps, seconds = 4 + 4 + 2, 0.5 + 0.5 + 3.0
    assert mode["step_ms"]["draft"] == pytest.approx(100 * seconds / steps)
    assert mode["step_ms"]["other"] == pytest.approx(200 * seconds / steps)
    assert mode["step_ms"]["total"] == pytest.approx(900 * seconds / steps)
    assert mode["acceptance_histogram"] == [0, steps]
    assert sum(mode["sources"].values()) == pytest.approx(1.0)
    assert mode["nodes"] == [{"nodes": 5, "steps": steps, "forward_ms": pytest.approx(600 * seconds / steps)}]
    assert mode["peak_memory_bytes"] == 1000


def test_a_question_counts_once_every_mode_has_answered_all_its_turns(tmp_path: Path) -> None:
    wanted = plan(write_questions(tmp_path / "q.jsonl", ["qa"]), turns=True)
    some = [result("a", mode, range(9), 1.0, turn=turn) for mode in ("plain", "paper:8") for turn in (0, 1)]
    some += [result("b", mode, range(9), 1.0) for mode in ("plain", "paper:8")]
    some += [result("c", "plain", range(9), 1.0, turn=turn) for turn in (0, 1)]
    report = build(wanted, questions(turns=2), some, {})
    assert report["environment"]["questions"] == 1
    assert report["modes"]["paper:8"]["overall"]["tokens"] == 18


def test_a_report_of_nothing_is_written(tmp_path: Path, wanted: Plan) -> None:
    report = build(wanted, questions(), [], {"command": "racer-csd bench"})
    assert report["modes"]["paper:8"]["overall"]["speedup"] is None
    assert [path.name for path in write(report, tmp_path)] == ["report.json", "report.md"]


def test_tables_and_plots_are_written(tmp_path: Path, wanted: Plan) -> None:
    report = build(wanted, questions(), results(), {"cost_curve": [[1, 0.01], [8, 0.02]]})
    written = write(report, tmp_path)
    assert {path.name for path in written} == {
        "report.json",
        "report.md",
        "speedup.png",
        "accepted_length.png",
        "step_cost.png",
    }
    assert json.loads((tmp_path / "report.json").read_text()) == report
    text = (tmp_path / "report.md").read_text()
    assert "| paper:8 | 2.00x |" in text
    assert "(speedup.png)" in text
    assert all(path.stat().st_size > 0 for path in written)


def test_the_bootstrap_is_the_same_for_the_same_seed() -> None:
    values = [1.0, 1.5, 2.0, 2.5, 9.0, 0.5, 1.7]
    low, high = bootstrap_median(values, 3)
    assert (low, high) == bootstrap_median(values, 3)
    middle = median(values)
    assert low is not None and high is not None and middle is not None
    assert min(values) <= low <= middle <= high <= max(values)
    assert bootstrap_median([2.0], 0) == (2.0, 2.0)
    assert bootstrap_median([], 0) == (None, None)
    assert median([]) is None
