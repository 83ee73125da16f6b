"""Fixtures of the benchmark's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """No test reads or leaves a cost curve in the user's cache; one is measured quickly, and kept also on a busy machine."""
    monkeypatch.setenv("RACER_CACHE_DIR", str(cache))
    monkeypatch.setattr("app.engine.cost.measure.ROUNDS", 1)
    monkeypatch.setattr("app.engine.cost.measure.HALVINGS", 0)
    monkeypatch.setattr("app.engine.cost.measure.disturbance", lambda *_: 0.0)


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """A tiny model gains nothing from a second thread, and loses much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
