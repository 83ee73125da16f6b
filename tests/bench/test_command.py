"""`racer-csd bench` from end to end, on a tiny model directory."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from app.commands import main as cli
from app.commands.bench import spread_data
from bench.benchmark import Benchmark
from tests.bench.support import save_tiny_model, write_questions


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["racer-csd", "bench", *arguments])
    monkeypatch.setattr(cli, "leave", sys.exit)  # what is interrupted would end this process at once
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("model") / "tiny-llama"))


def arguments(tmp_path: Path, model: str, *more: str) -> list[str]:
    first = write_questions(tmp_path / "a.jsonl", ["qa", "qa", "math"])
    second = write_questions(tmp_path / "b.jsonl", ["code"])
    words = ["--target", model, "--data", str(first), str(second), "--modes", "plain,paper:8,hf-plain,hf-pld"]
    return [
        *words,
        "--max-tokens",
        "10",
        "--limit",
        "3",
        "--dtype",
        "fp32",
        "--threads",
        "1",
        "--seed",
        "1",
        "--out",
        str(tmp_path / "o"),
        *more,
    ]


def test_a_run_writes_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str
) -> None:
    assert run(monkeypatch, *arguments(tmp_path, model)) == 0
    report = json.loads((tmp_path / "o" / "report.json").read_text())
    assert list(report["modes"]) == ["plain", "paper:8", "hf-plain", "hf-pld"]
    for mode in report["modes"].values():
        assert mode["overall"]["equal_to_plain"] == 1.0
        assert set(mode["categories"]) == {"qa", "math", "code"}
        assert {"speedup", "speedup_low", "speedup_high", "mat", "tokens_per_s"} <= mode["overall"].keys()
    assert report["environment"]["model"] == "tiny-llama"
    assert report["environment"]["status"] == "complete"
    assert report["environment"]["command"].startswith("racer-csd bench --target")
    shown = capsys.readouterr()
    assert "| paper:8 |" in shown.out
    assert "[12/12]" in shown.err


def test_an_interrupt_keeps_and_reports_what_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str
) -> None:
    measure = Benchmark._measure
    left = [4 + 4 + 2]  # the warm-up, one question, half of the second

    def interrupted(*given: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return measure(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Benchmark, "_measure", lambda *given, **named: interrupted(*given, *named.values()))
        assert run(monkeypatch, *arguments(tmp_path, model)) == 130
    report = json.loads((tmp_path / "o" / "report.json").read_text())
    assert (report["environment"]["status"], report["environment"]["questions"]) == ("partial", 1)
    assert run(monkeypatch, *arguments(tmp_path, model)) == 0
    report = json.loads((tmp_path / "o" / "report.json").read_text())
    assert (report["environment"]["status"], report["environment"]["questions"]) == ("complete", 3)
    capsys.readouterr()
    assert run(monkeypatch, *arguments(tmp_path, model, "--warm")) == 2
    assert "warm (there False, now True)" in capsys.readouterr().err


@pytest.mark.parametrize("interrupt", [signal.default_int_handler, signal.SIG_IGN])
def test_a_run_that_is_terminated_keeps_and_reports_what_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, interrupt: Any
) -> None:
    """Also one that a shell started in its background, where Ctrl-C is ignored."""
    measure = Benchmark._measure
    made: list[None] = []

    def terminated(*given: Any, **named: Any) -> Any:
        made.append(None)
        if len(made) == 4 + 4 + 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return measure(*given, **named)

    monkeypatch.setattr(Benchmark, "_measure", terminated)
    handlers = signal.signal(signal.SIGINT, interrupt), signal.getsignal(signal.SIGTERM)
    try:
        assert run(monkeypatch, *arguments(tmp_path, model)) == 143
        assert signal.getsignal(signal.SIGTERM) is handlers[1]
    finally:
        signal.signal(signal.SIGINT, handlers[0])
    report = json.loads((tmp_path / "o" / "report.json").read_text())
    assert (report["environment"]["status"], report["environment"]["questions"]) == ("partial", 1)
    assert len((tmp_path / "o" / "results.jsonl").read_text().splitlines()) == 4 + 1


@pytest.mark.parametrize("warm", [False, True])
def test_the_report_says_what_outlives_a_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str, warm: bool
) -> None:
    words = ["--modes", "auto", "--limit", "1", "--prior-rows", "30", *(["--warm"] if warm else [])]
    assert run(monkeypatch, *arguments(tmp_path, model), *words) == 0
    environment = json.loads((tmp_path / "o" / "report.json").read_text())["environment"]
    assert ("copy-logit rows" in environment["carried"]) is warm
    assert {"acceptance estimates", "step costs"} <= set(environment["carried"])
    assert environment["prior_rows"] == 30
    shown = capsys.readouterr().out
    assert f"each mode its own: {', '.join(environment['carried'])}\n" in shown
    assert "prior rows of 30 tokens" in shown


def test_results_that_are_there_are_said_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str
) -> None:
    assert run(monkeypatch, *arguments(tmp_path, model)) == 0
    assert "earlier run" not in capsys.readouterr().err
    assert run(monkeypatch, *arguments(tmp_path, model)) == 0
    assert "12 results of an earlier run are taken from" in capsys.readouterr().err
    for limit, questions in (("4", 4), ("2", 2)):  # a larger one goes on, a smaller one judges what it asks for
        assert run(monkeypatch, *arguments(tmp_path, model), "--limit", limit) == 0
        report = json.loads((tmp_path / "o" / "report.json").read_text())
        assert (report["environment"]["questions"], report["environment"]["status"]) == (questions, "complete")
    assert len((tmp_path / "o" / "results.jsonl").read_text().splitlines()) == 16


def test_questions_that_are_all_too_long_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str
) -> None:
    assert run(monkeypatch, *arguments(tmp_path, model, "--max-tokens", "250")) == 2
    assert "no question fits the context of 256 tokens with --max-tokens 250" in capsys.readouterr().err


def test_quality_says_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str
) -> None:
    data = write_questions(tmp_path / "a.jsonl", ["qa", "qa"])
    words = ["quality", "--target", model, "--data", str(data), "--modes", "racer,racer+csd", "--max-tokens", "20"]
    assert run(monkeypatch, *words, "--dtype", "float32", "--threads", "1", "--out", str(tmp_path / "q")) == 0
    report = (tmp_path / "q" / "report.md").read_text()
    for said in ("target tiny-llama", "draft model none", "float32 on cpu", "1 threads", "lambda 6.0, tau 0.01", "- MAT: "):
        assert said in report, said
    assert "\n    racer-csd bench quality --target" in report
    assert "[6/6]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--modes", "plain"], "--data"),
        (["--data", "none.jsonl", "--dtype", "int8"], "--dtype must be one of auto, bf16, bfloat16,"),
        (["--data", "none.jsonl"], "none.jsonl cannot be read"),
        (["--data", "none.jsonl", "--modes", "quick"], "unknown mode 'quick'"),
        (["--data", "none.jsonl", "--modes", "hf-assisted"], "--draft"),
    ],
)
def test_wrong_usage_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run(monkeypatch, *words) == 2
    error = capsys.readouterr().err
    assert error.startswith("racer-csd: error: ")
    assert said in error
    assert error.count("\n") == 1


def test_data_takes_several_words() -> None:
    assert spread_data(["--data", "a", "b", "--limit", "3", "--data", "c"]) == [
        "--data",
        "a",
        "--data",
        "b",
        "--limit",
        "3",
        "--data",
        "c",
    ]
    assert spread_data(["kernels", "--out", "x"]) == ["kernels", "--out", "x"]


def test_gauge_prints_clock_and_counters_and_judges(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str
) -> None:
    """How far they are apart on a busy machine is no test; that the exit code says so is."""
    questions = write_questions(tmp_path / "q.jsonl", ["qa", "math"])
    words = ["gauge", "--target", model, "--data", str(questions), "--max-tokens", "20", "--dtype", "fp32", "--threads", "1"]
    code = run(monkeypatch, *words)
    shown = capsys.readouterr().out
    clock, counters = (float(line.split()[4]) for line in shown.splitlines() if line.startswith("speedup by"))
    assert clock > 0 and counters > 0
    assert "racer_speedup_ratio" in shown
    off = abs(counters / clock - 1.0)
    assert (code in (1, 3)) == (off > 0.1) or off == pytest.approx(0.1, abs=0.002)


@pytest.mark.parametrize(("words", "reason"), [(["--mode", "hf-plain"], "mode of ours"), (["--mode", "plain"], "mode of ours")])
def test_gauge_refuses_what_has_none(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    model: str,
    words: list[str],
    reason: str,
) -> None:
    questions = write_questions(tmp_path / "q.jsonl", ["qa"])
    assert run(monkeypatch, "gauge", "--target", model, "--data", str(questions), "--max-tokens", "8", *words) == 2
    assert reason in capsys.readouterr().err


def test_gauge_needs_questions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "gauge") == 2
    assert "--data" in capsys.readouterr().err
