"""The output directory: what is read back, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError
from bench.store import RESULTS, SETTINGS, ResultStore
from tests.bench.support import result

SETTING: dict[str, Any] = {"target": "tiny", "seed": 0}


def filled(directory: Path) -> ResultStore:
    store = ResultStore(directory, SETTING)
    store.add(result("a", "plain", range(5), 1.0))
    store.add(result("a", "pld", range(5), 0.5))
    store.close()
    return store


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    before = filled(tmp_path / "out")
    after = ResultStore(tmp_path / "out", SETTING)
    assert after.results == before.results
    assert after.resumed == 2
    after.close()


def test_a_line_cut_off_by_a_crash_is_dropped(tmp_path: Path) -> None:
    before = filled(tmp_path)
    with (tmp_path / RESULTS).open("a") as file:
        file.write('{"question": "b", "ca')
    after = ResultStore(tmp_path, SETTING)
    assert after.results == before.results
    after.add(result("b", "plain", range(3), 1.0))
    after.close()
    assert len(ResultStore(tmp_path, SETTING).results) == 3


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    filled(tmp_path)
    with pytest.raises(BenchError, match=r"seed \(there 0, now 1\)") as raised:
        ResultStore(tmp_path, {**SETTING, "seed": 1})
    assert "target" not in str(raised.value)
    assert "--fresh" in str(raised.value)
    assert len((tmp_path / RESULTS).read_text().splitlines()) == 2


def test_a_run_may_go_on_with_another_limit(tmp_path: Path) -> None:
    store = ResultStore(tmp_path, {**SETTING, "limit": 1})
    store.add(result("a", "plain", range(5), 1.0))
    store.close()
    for limit in (3, None):
        store = ResultStore(tmp_path, {**SETTING, "limit": limit})
        assert (store.resumed, json.loads((tmp_path / SETTINGS).read_text())["limit"]) == (1, limit)
        store.close()


def test_fresh_drops_what_is_there(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "mine.txt").write_text("kept")
    store = ResultStore(tmp_path, {**SETTING, "seed": 1}, fresh=True)
    assert store.results == {}
    store.close()
    assert (tmp_path / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize(("name", "content"), [(SETTINGS, "{"), (SETTINGS, "[]"), (RESULTS, "{}\n"), (RESULTS, "x\n{}\n")])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    filled(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(BenchError, match=name):
        ResultStore(tmp_path, SETTING)


def test_results_without_settings_are_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / SETTINGS).unlink()
    with pytest.raises(BenchError, match="without their settings"):
        ResultStore(tmp_path, SETTING)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match="cannot be used"):
        ResultStore(tmp_path / "file", SETTING)


def test_a_run_without_results_gives_way_to_another(tmp_path: Path) -> None:
    ResultStore(tmp_path, {**SETTING, "seed": 1}).close()
    ResultStore(tmp_path, SETTING).close()
    filled(tmp_path)
    assert len(ResultStore(tmp_path, SETTING).results) == 2


def test_each_result_is_on_the_disk_before_the_next_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    store = ResultStore(tmp_path, SETTING)
    sizes.clear()
    for question in ("a", "b"):
        store.add(result(question, "plain", range(5), 1.0))
        assert sizes.pop() == (tmp_path / RESULTS).stat().st_size
    store.close()
