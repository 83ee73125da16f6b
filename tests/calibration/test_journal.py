"""The journal: resumed where it was cut off, refused where it is another run's or damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.calibration.forced import ComparedText
from app.calibration.journal import Journal
from app.calibration.linelog import LineLogError
from csd.divergence import Event

SETTINGS = {"mode": "forced", "target": "t"}
FIRST = ComparedText("a/1", 10, (Event(1, 2, -0.5), Event(1, 2, -1.5)))
SECOND = ComparedText("a/2", 5, (Event(3, 4, -2.0),))


def filled(directory: Path, close: bool = True) -> Journal:
    journal = Journal(directory, SETTINGS)
    journal.add(FIRST, 1.0, 100)
    journal.add(SECOND, 2.0, 50)
    if close:
        journal.close()
    return journal


def test_a_rerun_finds_everything(tmp_path: Path):
    before = filled(tmp_path)
    again = Journal(tmp_path, SETTINGS)
    assert again.readings == {"a/1": FIRST, "a/2": SECOND}
    assert (again.seconds, again.tokens) == (3.0, 150)
    assert again.batches == before.batches == []
    whole = again.divergences()
    assert whole.entries() == [(1, 2, 2.0), (3, 4, 1.0)]
    assert (whole.positions, whole.events) == (15, 3)
    again.close()


def test_a_line_that_was_cut_off_is_read_again(tmp_path: Path):
    path = filled(tmp_path).path
    content = path.read_bytes()
    path.write_bytes(content[:-7])
    cut = Journal(tmp_path, SETTINGS)
    assert list(cut.readings) == ["a/1"]
    cut.add(SECOND, 2.0, 50)
    cut.close()
    assert path.read_bytes() == content


def test_the_id_of_the_batch_depends_on_what_was_read_not_on_the_order(tmp_path: Path):
    one = filled(tmp_path / "one", close=False)
    other = Journal(tmp_path / "other", SETTINGS)
    other.add(SECOND, 9.0, 50)
    other.add(FIRST, 9.0, 100)
    for journal in (one, other):
        journal.seal()
        journal.close()
    assert other.batches == one.batches and len(one.batches) == 1


def test_another_run_and_damage_are_refused_and_fresh_starts_anew(tmp_path: Path):
    path = filled(tmp_path).path
    with pytest.raises(LineLogError, match="--fresh"):
        Journal(tmp_path, {**SETTINGS, "target": "other"})
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], "{}\n", lines[2]]))
    with pytest.raises(LineLogError, match="line 2: damaged"):
        Journal(tmp_path, SETTINGS)
    fresh = Journal(tmp_path, SETTINGS, fresh=True)
    assert not fresh.readings
    fresh.close()


def test_a_run_that_did_nothing_yet_gives_way_to_another(tmp_path: Path):
    Journal(tmp_path, {**SETTINGS, "target": "mistyped"}).close()
    journal = Journal(tmp_path, SETTINGS)
    journal.add(FIRST, 1.0, 100)
    journal.close()
    again = Journal(tmp_path, SETTINGS)
    assert list(again.readings) == ["a/1"]
    again.close()


def test_each_reading_is_on_the_disk_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    journal = Journal(tmp_path, SETTINGS)
    for reading in (FIRST, SECOND):
        journal.add(reading, 1.0, 100)
        assert sizes[-1] == journal.path.stat().st_size
    journal.close()


THIRD = ComparedText("a/3", 4, (Event(1, 2, -0.25),))


def test_texts_that_come_later_are_a_batch_of_their_own(tmp_path: Path):
    first = filled(tmp_path, close=False)
    first.seal()
    first.seal()
    before = first.batches
    assert [entries for _, entries in before] == [[(1, 2, 2.0), (3, 4, 1.0)]]
    first.close()
    for _ in range(2):  # the next run, and one after it that finds nothing to do
        more = Journal(tmp_path, SETTINGS)
        if "a/3" not in more.readings:
            more.add(THIRD, 1.0, 10)
        more.seal()
        more.close()
        assert more.batches[:1] == before
        assert [entries for _, entries in more.batches[1:]] == [[(1, 2, 1.0)]]
        assert more.divergences().entries() == [(1, 2, 3.0), (3, 4, 1.0)]


def test_a_run_that_was_cut_off_makes_no_batch(tmp_path: Path):
    filled(tmp_path)
    again = Journal(tmp_path, SETTINGS)
    again.add(THIRD, 1.0, 10)
    again.seal()
    again.close()
    assert [entries for _, entries in again.batches] == [[(1, 2, 3.0), (3, 4, 1.0)]]


def test_a_journal_that_names_a_limit_goes_on_and_what_it_has_is_one_batch(tmp_path: Path):
    """Its table may be in a store already, under the id of these readings."""
    one = filled(tmp_path / "one", close=False)
    one.seal()
    one.close()
    path = filled(tmp_path / "old").path
    path.write_text(path.read_text().replace('"target":"t"', '"target":"t","limit":2', 1))
    for limit in ("2", "null"):
        path.write_text(path.read_text().replace('"limit":2', f'"limit":{limit}', 1))
        old = Journal(tmp_path / "old", SETTINGS)
        assert list(old.readings) == ["a/1", "a/2"]
        assert old.batches == one.batches
        old.close()


def test_a_batch_of_texts_that_are_not_there_is_damage(tmp_path: Path):
    path = filled(tmp_path).path
    path.write_text(path.read_text() + '{"batch":["a/1","a/9"]}\n')
    with pytest.raises(LineLogError, match="line 4: damaged"):
        Journal(tmp_path, SETTINGS)
