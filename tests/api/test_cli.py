"""The command: flags, exit codes, one-line errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.commands import main as cli
from app.engine.errors import ModelLoadError
from app.settings import Settings
from tests.synthetic import SyntheticEngine


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["racer-csd", *arguments])
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What `serve` would serve with."""
    import app.server

    found: list[Settings] = []

    def run(settings: Settings, *arguments: object) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr(app.server, "run", run)
    return found


def test_every_setting_is_a_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seen: list[Settings]
) -> None:
    assert run(monkeypatch, "serve", "--help") == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in shown, name
    for words in (
        "INTEGER  *Port to listen on; 0 takes a free one \\(default: 8000\\)",
        "NUMBER .*default: 0.01",
        "one of exact, csd; default: exact",
    ):
        assert re.search(words, shown), words
    flags = ["--max-nodes", "8", "--max_queued=3", "--no-warm-start", "--self-check", "--api-keys", "a,b", "--port", "0"]
    assert run(monkeypatch, "serve", *flags) == 0
    found = seen[0]
    assert (found.max_nodes, found.max_queued, found.warm_start, found.self_check) == (8, 3, False, True)
    assert (found.keys, found.port) == (("a", "b"), 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--max-nodes", "0"], "max_nodes"),
        (["--port", "http"], "port"),
        (["--workers", "2"], "more than one worker"),
        (["--api-keys", ","], "holds no key"),
        (["--api-keys-file", "/no/such/file"], "there is no file at this path"),
        (["--open-routes", "foo"], "health, ready, metrics, docs, page, or none alone"),
        (["--verifier", "csd"], "--allow-csd"),
        (["--drafter", "hybrid"], "--draft MODEL"),
        (["--drafter", "draft_model"], "--draft MODEL"),
    ],
)
def test_bad_settings_are_usage_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seen: list[Settings], arguments: list[str], text: str
) -> None:
    assert run(monkeypatch, "serve", *arguments) == 2
    errors = capsys.readouterr().err
    assert text in errors
    assert errors.count("\n") == 1
    assert not seen


def test_what_goes_together_is_taken(monkeypatch: pytest.MonkeyPatch, seen: list[Settings], tmp_path: Path) -> None:
    monkeypatch.setenv("RACER_CACHE_DIR", str(tmp_path))
    assert run(monkeypatch, "serve", "--verifier", "csd", "--allow-csd") == 0
    assert run(monkeypatch, "serve", "--drafter", "hybrid", "--draft", "d") == 0
    assert len(seen) == 2
    assert run(monkeypatch, "generate", "Hello", "--drafter", "hybrid") == 2


def test_a_misspelt_variable_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], seen: list[Settings]
) -> None:
    for name in ("RACER_MAX_NODE", "RACER_XYZ", "RACER_BENCH_KEY", "RACER_API_KEY"):
        monkeypatch.setenv(name, "secret")
    told = [
        "RACER_MAX_NODE is no setting and changes nothing; did you mean RACER_MAX_NODES?",
        "RACER_XYZ is no setting and changes nothing",
    ]
    with caplog.at_level("WARNING", logger="racer-csd"):
        assert run(monkeypatch, "serve") == 0
    assert [record.message for record in caplog.records if "no setting" in record.message] == told
    assert run(monkeypatch, "info", "--no-model") == 0
    shown = capsys.readouterr()
    assert [line for line in shown.out.splitlines() if "no setting" in line] == [f"warning: {line}" for line in told]


def test_more_usage_errors(monkeypatch: pytest.MonkeyPatch, seen: list[Settings]) -> None:
    assert run(monkeypatch, "serve", "--bogus") == 2
    assert run(monkeypatch, "bogus") == 2
    assert run(monkeypatch, "generate") == 2
    assert run(monkeypatch, "generate", "a", "--max-tokens", "0") == 2
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    assert run(monkeypatch, "serve") == 2
    assert not seen


def test_a_port_in_use(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert run(monkeypatch, "serve", "--port", str(taken.getsockname()[1])) == 1
    assert "cannot listen" in capsys.readouterr().err


def test_generate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    engines: list[SyntheticEngine] = []

    def load(settings: Settings) -> SyntheticEngine:
        engines.append(SyntheticEngine(name=settings.target))
        return engines[-1]

    monkeypatch.setattr(cli, "load_engine", load)
    assert run(monkeypatch, "generate", "Hello", "--max-tokens", "20", "--drafter", "none", "--target", "x") == 0
    output = capsys.readouterr()
    assert output.out.strip()
    assert "20 generated" in output.err
    assert "drafter none" in output.err
    request = engines[0].requests[0]
    assert request.prompt_ids == tuple(engines[0].codec.encode_chat([{"role": "user", "content": "Hello"}]))
    assert not engines[0].status().alive
    assert run(monkeypatch, "generate", "Hello", "--raw", "--seed", "5", "--temperature", "0.5") == 0
    request = engines[1].requests[0]
    assert (request.prompt_ids, request.continue_text) == (tuple(engines[1].codec.encode("Hello")), True)
    assert (request.sampling.seed, request.sampling.temperature) == (5, 0.5)


def test_failures_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def load(settings: Settings) -> SyntheticEngine:
        raise ModelLoadError("There is no model\nat x.")

    monkeypatch.setattr(cli, "load_engine", load)
    assert run(monkeypatch, "generate", "Hello", "--target", "x") == 1
    assert capsys.readouterr().err == "racer-csd: error: There is no model at x.\n"


def test_info(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RACER_API_KEYS", "secret,other")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.delenv("RACER_CACHE_DIR", raising=False)
    assert run(monkeypatch, "info", "--no-model") == 0
    shown = capsys.readouterr().out
    assert "measurements: /somewhere/racer-csd\n" in shown
    assert "torch" in shown
    assert "api_keys = 2 set" in shown
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("own", "expected"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_threads_spin_briefly_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, str], expected: str | None
) -> None:
    environment = {"COLUMNS": "300", **own}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(cli, "cli", lambda: None)
    cli.main()
    assert environment.get("GOMP_SPINCOUNT") == expected


@pytest.mark.slow
def test_the_command_does_not_load_torch_by_itself() -> None:
    """What it sets for OpenMP would come too late."""
    command = [sys.executable, "-c", "import sys, app.commands.main; print('torch' in sys.modules)"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.stdout.strip() == b"False", done.stderr
