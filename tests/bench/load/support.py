"""What the tests of the load tool share: question files, samples made by hand, the command line in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from app.commands import main as cli
from bench.load.sample import Sample, Speculation
from tests.bench.support import write_questions

PLAIN = '{"drafter":"none"}'


def questions(tmp_path: Path, count: int = 6) -> Path:
    return write_questions(tmp_path / "questions.jsonl", ["qa", "math"] * (count // 2))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of `racer-csd bench serve`."""
    monkeypatch.setattr(sys, "argv", ["racer-csd", "bench", "serve", *arguments])
    monkeypatch.setattr(cli, "leave", sys.exit)  # what is interrupted would end this process at once
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def report_of(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "report.json").read_text()))


def sample(request: int, way: str = "default", **changes: Any) -> Sample:
    """An answer of five tokens that took a second."""
    usual: dict[str, Any] = {
        "question": f"q/{request}",
        "block": 0,
        "due": 0.0,
        "e2e": 1.0,
        "ttft": 0.2,
        "decode": 0.8,
        "pause": 0.3,
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "speculation": Speculation(steps=2, drafted=8, accepted=2),
        "digest": "a",
    }
    return Sample(request, way=way, **{**usual, **changes})
