"""Whole calibrations of a tiny pair: both modes, cut off and resumed, and what lands in the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.calibration.journal import Journal
from app.calibration.run import CalibrationProgress, Mode, calibrate, summary
from app.calibration.texts import Item
from app.engine.correction import CsdConfig
from app.engine.engine import Engine
from tests.engine.drafting import pair, similar

ITEMS = [
    Item("a/1", "what is one and one", "two, of course"),
    Item("a/2", "name a colour", None),
    Item("b/1", None, "the cat sat on the mat and the dog sat on the cat"),
    Item("a/3", "abcabcabc", None),
]
MODES = pytest.mark.parametrize("mode", ["forced", "rollout"])


def run(engine: Engine, directory: Path, mode: Mode, stop_after: int | None = None, generate: bool = False) -> Journal:
    """Calibrate; with stop_after, be interrupted as by Ctrl-C after that many texts."""
    journal = Journal(directory, {"mode": mode})

    def hear(progress: CalibrationProgress) -> None:
        assert progress.total == len(ITEMS) and progress.seconds_left >= 0
        if stop_after is not None and progress.done >= stop_after:
            raise KeyboardInterrupt

    try:
        calibrate(engine, ITEMS, mode, journal, max_tokens=24, gamma=4, generate=generate, report=hear)
    finally:
        journal.close()
    return journal


@MODES
def test_a_run_that_was_cut_off_ends_where_a_whole_one_does(tmp_path: Path, mode: Mode):
    with pair(similar(), csd=CsdConfig(allowed=True)) as engine:
        whole = run(engine, tmp_path / "whole", mode)
        with pytest.raises(KeyboardInterrupt):
            run(engine, tmp_path / "cut", mode, stop_after=2)
        resumed = run(engine, tmp_path / "cut", mode)
        assert list(resumed.readings) == [item.key for item in ITEMS]
        assert resumed.divergences().entries() == whole.divergences().entries()
        assert resumed.batches == whole.batches and len(whole.batches) == 1
        found = whole.divergences()
        assert 3 < found.events < found.positions
        report = summary(found, whole, engine.codec.decode)
        assert report["events"] == found.events and report["most_frequent"][0]["count"] >= 1


def test_a_rollout_counts_what_the_memory_counted(tmp_path: Path):
    with pair(similar(), csd=CsdConfig(allowed=True)) as engine:
        found = run(engine, tmp_path, "rollout").divergences()
        assert engine.corrections is not None
        assert list(engine.corrections.memory.entries()) == found.entries()
        assert all(record.greatest <= 0 for record in found.pairs.values())


def test_forced_reads_answers_it_had_generated(tmp_path: Path):
    with pair(similar(), csd=CsdConfig(allowed=True)) as engine:
        asked = run(engine, tmp_path / "asked", "forced").readings["a/2"]
        answered = run(engine, tmp_path / "answered", "forced", generate=True).readings["a/2"]
        assert answered.positions == 24 != asked.positions


def test_a_table_is_added_to_the_store_once(tmp_path: Path):
    config = CsdConfig(allowed=True, store=f"sqlite:{tmp_path / 'ocm.sqlite3'}")
    with pair(similar(), csd=config) as engine:
        journal = run(engine, tmp_path / "run", "forced")
        entries = journal.divergences().entries()
        corrections = engine.corrections
        assert corrections is not None
        for _ in range(3):
            corrections.add(entries, journal.batches[0][0])
        assert list(corrections.memory.entries()) == entries
    with pair(similar(), csd=config) as engine:  # a restart finds it
        assert engine.corrections is not None and engine.corrections.flush(10.0)
        assert list(engine.corrections.memory.entries()) == entries
