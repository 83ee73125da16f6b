"""racer-csd info: what it shows, and what it does not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from app.commands import info as info_command
from app.commands import main as cli
from app.engine.correction import CsdConfig
from app.engine.engine import Engine, EngineConfig
from app.engine.errors import ModelLoadError
from app.settings import Settings
from tests.tiny import loaded

CURVE = ((1, 0.020), (8, 0.025), (64, 0.060))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["racer-csd", "info", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load(settings: Settings) -> Engine:
        if settings.target == "absent":
            raise ModelLoadError("There is no model.")
        csd = CsdConfig(allowed=settings.allow_csd, store=f"sqlite:{tmp_path / 'ocm.sqlite3'}")
        return Engine(loaded(), EngineConfig(max_nodes=24, prior_rows=0, cost_curve=CURVE, csd=csd))

    monkeypatch.setattr(info_command, "load_engine", load)
    for name in ("RACER_API_KEYS", "RACER_STORE", "RACER_ALLOW_CSD"):
        monkeypatch.delenv(name, raising=False)


def test_everything(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RACER_API_KEYS", "secret,other")
    monkeypatch.setenv("RACER_STORE", "redis://:password@somewhere/0")
    monkeypatch.setenv("RACER_ALLOW_CSD", "true")
    monkeypatch.setenv("RACER_MAX_QUEUED", "3")
    assert run(monkeypatch, "--json") == 0
    shown = capsys.readouterr().out
    assert not any(word in shown for word in ("secret", 'other"', "password"))
    report = json.loads(shown)
    assert report["model"]["name"] == "tiny"
    assert report["model"]["dtype"] == "float32"
    assert report["step_seconds"] == [list(point) for point in CURVE]
    assert report["store"]["state"] == "ok"
    assert len(report["store"]["fingerprint"]) == 32
    assert set(report["settings"]) == set(Settings.model_fields)
    assert report["settings"]["api_keys"] == "2 set"
    assert run(monkeypatch) == 0
    text = capsys.readouterr().out
    assert not any(word in text for word in ("secret", "password"))
    for part in (
        "tree attention: True",
        "T(n)",
        "25.00",
        "1.25",
        "ok, 0 pairs",
        "max_queued = 3  (default 64)",
        "api_keys = 2 set",
    ):
        assert part in text
    assert "port = 8000\n" in text


def test_without_csd_and_without_a_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch) == 0
    assert "store: none, csd is not allowed" in capsys.readouterr().out
    assert run(monkeypatch, "--no-model", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"versions", "machine", "cache", "warnings", "settings"}
    assert report["versions"]["torch"]


def test_a_model_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--target", "absent") == 1
    shown = capsys.readouterr().out
    assert "model: cannot be loaded. There is no model." in shown
    assert "target = absent  (default smollm2)" in shown
    assert run(monkeypatch, "--max-nodes", "3") == 2
