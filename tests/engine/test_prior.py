"""Prior rows that are cut off: what is kept, what is said, and where waiting for them ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.engine.cost.measurements import Measurements
from app.engine.cost.prior import PriorRows
from app.engine.engine import Engine, EngineConfig
from tests.tiny import loaded, tiny_engine
from tests.waiting import wait_until

FLAT = ((1, 0.02), (64, 0.02))
CONFIG = EngineConfig(max_nodes=8, prior_rows=97, cost_curve=FLAT)


def small_chunks(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Four rows per chunk, and none once `most` are known."""
    advance = PriorRows.advance
    monkeypatch.setattr(PriorRows, "_chunk", lambda _: 4)
    monkeypatch.setattr(PriorRows, "advance", lambda rows, room: rows.done < most and advance(rows, room))


def test_an_engine_that_is_closed_keeps_the_rows_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    measurements = Measurements(tmp_path, loaded())
    with monkeypatch.context() as patch:
        small_chunks(patch, 40)
        patch.setattr("app.engine.cost.prior.SAVE_EVERY", 1e9)
        with Engine(loaded(), CONFIG, measurements=measurements) as engine:
            wait_until(lambda: engine.status().drafting.prior_rows >= 40)
            assert not measurements.prior_path.exists()
            kept = engine._drafters.shared.prior_ids[:40].copy()
    with np.load(measurements.prior_path) as found:
        assert np.array_equal(found["ids"], kept)
    with Engine(loaded(), CONFIG, measurements=measurements) as engine:
        assert engine.instruments.settle(60.0)
        assert np.array_equal(engine._drafters.shared.prior_ids[:40], kept)
    with np.load(measurements.prior_path) as found:
        assert len(found["ids"]) == 97


def test_rows_are_kept_from_time_to_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    measurements = Measurements(tmp_path, loaded())
    small_chunks(monkeypatch, 40)
    monkeypatch.setattr("app.engine.cost.prior.SAVE_EVERY", 0.0)
    with Engine(loaded(), CONFIG, measurements=measurements) as engine:
        wait_until(lambda: engine.status().drafting.prior_rows >= 40)
        wait_until(measurements.prior_path.exists)
        with np.load(measurements.prior_path) as found:  # while it runs: a process that is killed loses what came after
            assert len(found["ids"]) > 0


def test_settle_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch):
    small_chunks(monkeypatch, 40)
    heard: list[tuple[int, int]] = []
    with tiny_engine(prior_rows=97, cost_curve=FLAT) as engine:
        wait_until(lambda: engine.status().drafting.prior_rows >= 40)
        assert not engine.instruments.settle(0.0, lambda done, wanted: heard.append((done, wanted)))
    assert heard == [(40, 97)]


def test_settle_ends_where_the_work_was_given_up(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise RuntimeError("made to fail")

    monkeypatch.setattr(PriorRows, "advance", fail)
    with tiny_engine(prior_rows=97, cost_curve=FLAT) as engine:
        assert not engine.instruments.settle(60.0)
        assert engine._scheduler.alive
