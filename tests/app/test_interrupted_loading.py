"""Ctrl-C and SIGTERM while a model loads: one line that says so, exit code 130 or 143, and nothing half made is left."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.commands.main import cli
from app.engine.models import cache as model_cache
from app.engine.models.cache import drop_unfinished, scratch_directory
from app.process import INTERRUPTED, TERMINATED

DATA = "--data=questions.jsonl"
COMMANDS: dict[str, list[str]] = {
    "generate": ["generate", "Hello", "--target=m"],
    "chat": ["chat", "--target=m"],
    "info": ["info", "--target=m"],
    "bench": ["bench", "--target=m", DATA],
    "bench gauge": ["bench", "gauge", "--target=m", DATA],
    "bench quality": ["bench", "quality", "--target=m", DATA, "--modes=plain"],
    "calibrate": ["calibrate", "--target=m", "--draft=d", DATA],
}


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)])
@pytest.mark.parametrize("command", COMMANDS)
def test_one_line_and_the_code_of_the_signal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    command: str,
    sent: signal.Signals,
    code: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("questions.jsonl").write_text('{"question_id": 1, "category": "c", "turns": ["x"], "reference": ["y"]}\n')
    monkeypatch.setattr("app.engine.engine.compile_ahead", lambda _: None)

    def load(*_: Any, **__: Any) -> None:
        with scratch_directory(tmp_path / "cache"):
            signal.raise_signal(sent)
        pytest.fail("it went on")

    for module in ("app.engine.engine", "bench.run", "bench.gauge"):
        monkeypatch.setattr(f"{module}.load_model", load)
    before = signal.getsignal(signal.SIGTERM)
    with caplog.at_level(logging.WARNING):
        result = CliRunner().invoke(cli, COMMANDS[command])
    assert result.exit_code == code, result.output
    assert [record.getMessage() for record in caplog.records] == ["stopped while m was being loaded"]
    assert signal.getsignal(signal.SIGTERM) is before
    assert not list((tmp_path / "cache").iterdir())


def test_an_end_without_finally_leaves_nothing_half_made(tmp_path: Path) -> None:
    with scratch_directory(tmp_path) as scratch:
        (scratch / "half").write_text("x")
        drop_unfinished()
        assert not scratch.exists()
    assert not model_cache._unfinished


WITH_A_THREAD = """
import sys, threading
from app.commands import main as cli

def stopped():
    threading.Thread(target=threading.Event().wait).start()  # not a daemon: the interpreter's own end would wait for it
    print("kept", end="")
    sys.exit(143)

cli.cli = stopped
cli.main()
"""


def test_a_stopped_command_waits_for_no_thread() -> None:
    done = subprocess.run([sys.executable, "-c", WITH_A_THREAD], capture_output=True, text=True, timeout=120.0, check=False)
    assert (done.returncode, done.stdout) == (143, "kept")
