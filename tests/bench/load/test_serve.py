"""`racer-csd bench serve` against a real app on a real socket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import httpx
import pytest

from app.engine.interface import EngineInterface
from app.main import create_app
from tests.api.support import new_settings, samples, served, serving
from tests.bench.load.support import PLAIN, questions, report_of, run
from tests.bench.support import FLAT
from tests.servers import free_port
from tests.synthetic import SyntheticEngine
from tests.tiny import tiny_engine
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]


def test_a_closed_loop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    engine = SyntheticEngine()
    out = tmp_path / "out"
    words = ["--data", str(questions(tmp_path)), "--concurrency", "3", "--limit", "20", "--warmup", "4", "--max-tokens", "12"]
    with served(engine) as url:
        assert run(monkeypatch, "--url", url, *words, "--ignore-eos", "--out", str(out)) == 0
        page = samples(httpx.Client(base_url=url))
    report = report_of(out)
    assert (report["status"], report["requests"], report["completed"], report["errors"]) == ("complete", 20, 20, 0)
    assert report["completion_tokens"] == 20 * 12
    assert page["racer_generation_tokens_total"] == (20 + 4) * 12 + 1  # the warm-up, and one token to see that it is taken
    assert report["mat"] > 1.0
    assert report["tokens_per_s"] == pytest.approx(240 / report["seconds"])
    for figure in ("ttft_ms", "tpot_ms", "e2e_ms"):
        assert 0.0 <= report[figure]["p50"] <= report[figure]["p95"] <= report[figure]["p99"]
    assert report["ttft_ms"]["p99"] <= report["e2e_ms"]["p99"]
    assert report["environment"]["model"] == "synthetic"
    assert report["environment"]["server"]["drafter"] == "racer"
    assert report["arguments"]["concurrency"] == 3
    assert "| default |" in (out / "report.md").read_text()
    said = capsys.readouterr()
    assert "| default |" in said.out
    assert said.err.splitlines()[-1].endswith(f"report.md, {out / 'requests.jsonl'}")
    lines = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    assert sorted(line["request"] for line in lines) == list(range(20))


def test_an_open_loop_sends_what_is_due(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The server answers nothing until all requests are there: a closed loop would never get that far."""
    engine = SyntheticEngine(max_running=4, manual=True)
    engine.allow(1)  # for the one token that shows that requests are taken
    out = tmp_path / "out"
    with served(engine) as url:

        def answer_when_all_are_there() -> None:
            wait_until(lambda: len(engine.requests) == 1 + 12)
            engine.allow()

        thread = threading.Thread(target=answer_when_all_are_there)
        thread.start()
        words = ["--data", str(questions(tmp_path)), "--rate", "200", "--limit", "12", "--warmup", "0", "--out", str(out)]
        assert run(monkeypatch, "--url", url, *words) == 0
        thread.join()
    report = report_of(out)
    assert report["completed"] == 12
    lines = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    due = [line["due"] for line in sorted(lines, key=lambda line: line["request"])]
    assert due == sorted(due)
    assert len(set(due)) == 12


def test_auto_and_plain_in_one_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A real model in float32: the texts are equal, and the order of the ways is turned from block to block."""
    out = tmp_path / "out"
    words = ["--data", str(questions(tmp_path)), "--endpoint", "completions", "--limit", "8", "--block", "2", "--warmup", "0"]
    words += ["--speculative", '{"drafter":"racer","max_nodes":8}', "--speculative", PLAIN, "--max-tokens", "24"]
    with tiny_engine(cost_curve=FLAT) as engine:

        def factory() -> EngineInterface:
            return engine

        app = create_app(new_settings(target="tiny"), factory)
        with serving(app) as url:
            assert run(monkeypatch, "--url", url, *words, "--ignore-eos", "--concurrency", "2", "--out", str(out)) == 0
    report = report_of(out)
    racer, plain = report["runs"]
    assert (racer["name"], plain["name"]) == ("drafter=racer max_nodes=8", "drafter=none")
    assert racer["equal_to_plain"] == plain["equal_to_plain"] == 1.0
    assert (plain["mat"], plain["ratio_to_plain"]) == (1.0, 1.0)
    assert racer["mat"] > 1.0
    assert racer["ratio_to_plain"] == pytest.approx(racer["tokens_per_s"] / plain["tokens_per_s"])
    assert report["tokens_per_s"] == racer["tokens_per_s"]
    assert len(racer["tokens_per_s_by_block"]) == len(plain["tokens_per_s_by_block"]) == 4
    lines = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    order = [(line["block"], line["way"] == plain["name"]) for line in lines[::2]]
    assert order == [(0, False), (0, True), (1, True), (1, False), (2, False), (2, True), (3, True), (3, False)]


def test_refused_requests_are_counted_by_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = SyntheticEngine(max_running=1, max_queued=1, step_seconds=0.001)
    out = tmp_path / "out"
    words = ["--data", str(questions(tmp_path)), "--concurrency", "8", "--limit", "40", "--warmup", "0", "--out", str(out)]
    with served(engine) as url:
        assert run(monkeypatch, "--url", url, *words) == 0
        refused = samples(httpx.Client(base_url=url))["racer_queue_refusals_total"]
    report = report_of(out)
    assert report["errors"] == report["errors_by_kind"]["http_429"] == refused > 0
    assert report["completed"] + report["errors"] == 40
    assert "queue" in report["error_examples"]["http_429"]


def test_streams_that_fail_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = SyntheticEngine(fail_at_step=8)
    out = tmp_path / "out"
    words = ["--data", str(questions(tmp_path)), "--concurrency", "2", "--warmup", "0", "--out", str(out), "--ignore-eos"]
    with served(engine) as url:
        assert run(monkeypatch, "--url", url, *words) == 0
    report = report_of(out)
    assert set(report["errors_by_kind"]) == {"stream_internal_error"}
    assert report["completed"] == 6 - report["errors"] > 0


def test_a_server_that_goes_away(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    engine = SyntheticEngine()
    app = create_app(new_settings(), lambda: engine)
    out = tmp_path / "out"
    server = serving(app)
    url = server.__enter__()

    def end_after_some() -> None:
        wait_until(lambda: len(engine.requests) > 10)
        server.__exit__(None, None, None)

    thread = threading.Thread(target=end_after_some)
    thread.start()
    words = ["--data", str(questions(tmp_path)), "--concurrency", "2", "--limit", "100000", "--out", str(out)]
    assert run(monkeypatch, "--url", url, *words) == 1
    thread.join()
    assert "went away" in capsys.readouterr().err
    report = report_of(out)
    assert report["status"] == "partial"
    assert report["completed"] > 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "--data"),
        (["--data", "none.jsonl"], 2, "none.jsonl cannot be read"),
        (["--data", "QUESTIONS", "--speculative", "{"], 2, "--speculative '{' is not JSON"),
        (["--data", "QUESTIONS", "--url", "here"], 2, "--url"),
        (["--data", "QUESTIONS", "--wait", "0"], 1, "cannot be reached"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: list[str],
    code: int,
    said: str,
) -> None:
    data = str(questions(tmp_path))
    words = [data if word == "QUESTIONS" else word for word in words]
    url = [] if "--url" in words else ["--url", f"http://127.0.0.1:{free_port()}"]
    assert run(monkeypatch, *url, *words, "--out", str(tmp_path / "out")) == code
    error = capsys.readouterr().err
    assert error.startswith("racer-csd: error: ")
    assert said in error
    assert error.count("\n") == 1


def test_it_waits_for_a_server_that_loads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    go = threading.Event()

    def load() -> EngineInterface:
        go.wait(30.0)
        return SyntheticEngine()

    words = ["--data", str(questions(tmp_path)), "--out", str(tmp_path / "out")]
    with serving(create_app(new_settings(), load)) as url:
        assert run(monkeypatch, "--url", url, *words, "--wait", "0") == 1
        assert "is not ready (HTTP 503, loading)" in capsys.readouterr().err
        threading.Timer(0.3, go.set).start()
        assert run(monkeypatch, "--url", url, *words, "--wait", "30") == 0
    assert "waiting up to 30 s" in capsys.readouterr().err


def test_a_way_the_server_refuses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--data", str(questions(tmp_path)), "--out", str(tmp_path / "out"), "--speculative", '{"drafter":"magic"}']
    with served(SyntheticEngine()) as url:
        assert run(monkeypatch, "--url", url, *words) == 1
    error = capsys.readouterr().err
    assert "refuses --speculative 'drafter=magic'" in error
    assert "speculative.drafter" in error
    assert "HTTP 400" in error


def test_the_key_is_used_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--data", str(questions(tmp_path)), "--out", str(tmp_path / "out"), "--limit", "2"]
    with served(SyntheticEngine(), api_keys="sesame") as url:
        assert run(monkeypatch, "--url", url, *words) == 1
        assert "RACER_BENCH_KEY" in capsys.readouterr().err
        for key in (["--api-key", "sesame"], ["--api-key=sesame"]):
            assert run(monkeypatch, "--url", url, *words, *key) == 0
        monkeypatch.setenv("RACER_BENCH_KEY", "sesame")
        assert run(monkeypatch, "--url", url, *words) == 0
    shown = capsys.readouterr()
    written = "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    assert "sesame" not in shown.out + shown.err + written


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    out = tmp_path / "out"
    engine = SyntheticEngine()
    with served(engine) as url:
        command = [
            sys.executable,
            "-m",
            "app.commands.main",
            "bench",
            "serve",
            "--url",
            url,
            "--data",
            str(questions(tmp_path)),
        ]
        command += ["--limit", "1000000", "--concurrency", "4", "--warmup", "0", "--out", str(out)]
        process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        wait_until(lambda: len(engine.requests) > 50)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60.0)
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        wait_until(lambda: engine.status().running == engine.status().waiting == 0)
    report = report_of(out)
    assert report["status"] == "partial"
    assert report["completed"] > 0
    assert report["errors"] == 0
    assert report["tokens_per_s"] > 0
    lines = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    assert Counter(line["error"] for line in lines) == {None: report["completed"]}


def test_an_earlier_report_goes_when_the_next_run_measures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.json").write_text("{}")
    words = ["--data", str(questions(tmp_path)), "--out", str(out), "--wait", "0"]
    assert run(monkeypatch, "--url", f"http://127.0.0.1:{free_port()}", *words) == 1
    assert report_of(out) == {}
    with served(SyntheticEngine()) as url:
        assert run(monkeypatch, "--url", url, *words) == 0
    assert report_of(out)["completed"] == 6


def test_a_directory_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = str(questions(tmp_path))
    assert run(monkeypatch, "--data", data, "--out", data) == 2
    assert "cannot be used" in capsys.readouterr().err
