"""Damage in the cache directory: what was there is made again, it is said once with the path, and no start ends there."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.engine.cost.measure import Probe
from app.engine.cost.measurements import VERSION, Measurements
from app.engine.cost.prior import PriorRows
from app.engine.errors import ModelLoadError
from app.engine.forward.target import PackedTarget
from app.engine.models import loading, source
from app.engine.models.cache import MANIFEST, alone_in
from app.engine.models.gguf import convert as gguf_convert
from app.engine.models.loading import load_model
from racer.budget import CostCurve
from tests.engine.gguf_files import write_gguf
from tests.engine.test_loading import tiny
from tests.models import VOCABULARY
from tests.text.samples import byte_level
from tests.tiny import loaded

CURVE = CostCurve([1, 4, 16], [0.01, 0.011, 0.02])
ROWS, WIDTH = 6, 4


def told(caplog: pytest.LogCaptureFixture, path: Path) -> None:
    """Exactly one warning, and it names the path."""
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    caplog.clear()


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _directory(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def _content(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def _curve(points: Any, version: Any = VERSION) -> Callable[[Path], Any]:
    return _content(json.dumps({"version": version, "curve": points}).encode())


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "cut short": _cut,
    "empty": _content(b""),
    "zeros, as a power cut leaves them": _content(b"\0" * 400),
    "noise": _content(bytes(range(256))),
    "a directory": _directory,
    "an archive that is none": _content(b"PK\x03\x04" + b"\0" * 40),
}
CURVES: dict[str, Callable[[Path], Any]] = {
    "a list": _content(b"[]"),
    "no version": _content(b'{"curve": [[1, 0.1], [2, 0.2]]}'),
    "another version": _curve([[1, 0.1], [2, 0.2]], VERSION + 1),
    "not a number": _curve([[1, 0.1], [2, float("nan")]]),
    "infinite": _curve([[1, 0.1], [2, float("inf")]]),
    "negative": _curve([[1, -0.1], [2, 0.2]]),
    "zero": _curve([[1, 0.0], [2, 0.2]]),
    "one size": _curve([[1, 0.1]]),
    "sizes that fall": _curve([[1, 0.1], [4, 0.2], [2, 0.3]]),
    "a size beyond all bounds": _curve([[1, 0.1], [10**30, 0.2]]),
    "words": _curve([["one", "fast"], ["two", "slow"]]),
    "three values": _curve([[1, 2, 3]]),
    "null": _curve(None),
    "deep": _content(b"[" * 100_000),
}


@pytest.fixture
def measurements(tmp_path: Path) -> Measurements:
    return Measurements(tmp_path, loaded(), read=lambda: None)


@pytest.mark.parametrize("name", [*DAMAGE, *CURVES])
def test_cost_curve(measurements: Measurements, caplog: pytest.LogCaptureFixture, name: str) -> None:
    measurements.save(CURVE)
    path = next(measurements.prior_path.parent.iterdir())
    {**DAMAGE, **CURVES}[name](path)
    assert measurements.load() is None
    told(caplog, path)
    assert measurements.load() is None  # and what could not be used is gone
    assert not caplog.records
    measurements.save(CURVE)
    kept = measurements.load()
    assert kept is not None
    assert (kept.sizes.tolist(), kept.seconds.tolist()) == (CURVE.sizes.tolist(), CURVE.seconds.tolist())
    assert list(path.parent.iterdir()) == [path]


def _rows(**changes: Any) -> Callable[[Path], Any]:
    sound = {"version": 1, "ids": np.ones((ROWS, WIDTH), np.int32), "probs": np.full((ROWS, WIDTH), 0.1, np.float32)}
    entries = {name: value for name, value in {**sound, **changes}.items() if value is not None}
    content = io.BytesIO()
    np.savez(content, **entries)
    return _content(content.getvalue())


def _array(path: Path) -> None:
    np.save(path.with_suffix(".npy"), np.ones(3))
    path.with_suffix(".npy").replace(path)


PRIORS: dict[str, Callable[[Path], Any]] = {
    "no version": _rows(version=None),
    "another version": _rows(version=2),
    "no ids": _rows(ids=None),
    "narrow rows": _rows(ids=np.ones((ROWS, 1), np.int32), probs=np.ones((ROWS, 1), np.float32)),
    "flat": _rows(ids=np.ones(ROWS, np.int32), probs=np.ones(ROWS, np.float32)),
    "two lengths": _rows(ids=np.ones((ROWS - 1, WIDTH), np.int32)),
    "floats for ids": _rows(ids=np.ones((ROWS, WIDTH))),
    "no token before": _rows(ids=np.full((ROWS, WIDTH), -1, np.int32)),
    "beyond the vocabulary": _rows(ids=np.full((ROWS, WIDTH), VOCABULARY, np.int32)),
    "not a number": _rows(probs=np.full((ROWS, WIDTH), np.nan, np.float32)),
    "negative": _rows(probs=np.full((ROWS, WIDTH), -0.1, np.float32)),
    "more than certain": _rows(probs=np.full((ROWS, WIDTH), 1.5, np.float32)),
    "objects": _rows(ids=np.array([["x"] * WIDTH] * ROWS, object)),
    "a bare array": _array,
}


@pytest.mark.parametrize("name", [*DAMAGE, *PRIORS])
def test_prior_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    path = tmp_path / "measured" / "rows.npz"
    probe = Probe(PackedTarget(loaded().model), VOCABULARY, WIDTH, 64)

    def started() -> PriorRows:
        return PriorRows(probe, 1, ROWS, None, path)

    rows = first = started()
    while not rows.complete:
        rows.advance(1000)
    again = started()
    assert again.complete
    assert np.array_equal(again.ids, first.ids)
    assert np.array_equal(again.probs, first.probs)
    {**DAMAGE, **PRIORS}[name](path)
    rows = second = started()
    told(caplog, path)
    assert rows.done == 0
    assert (second.ids == -1).all()
    while not rows.complete:
        rows.advance(1000)
    assert np.array_equal(second.ids, first.ids)
    assert started().complete
    assert not caplog.records
    assert list(path.parent.iterdir()) == [path]


# -- converted models -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file and a cache with its conversion, to be copied."""
    folder = tmp_path_factory.mktemp("made")
    tokenizer = byte_level()
    write_gguf(folder / "made.gguf", tiny("llama", len(tokenizer)), tokenizer)
    load_model(str(folder / "made.gguf"), dtype="float32", device="cpu", cache_dir=folder / "cache")
    return folder


def _in(name: str, change: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda directory: change(directory / name)


def _turned(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _emptied(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


def _file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("no directory")


CONVERSIONS: dict[str, Callable[[Path], Any]] = {
    "weights cut short": _in("model.safetensors", _cut),
    "weights with one bit turned": _in("model.safetensors", _turned),
    "weights gone": _in("model.safetensors", Path.unlink),
    "no config": _in("config.json", Path.unlink),
    "config empty": _in("config.json", _content(b"")),
    "config a directory": _in("config.json", _directory),
    "config another one": _in("config.json", _content(b'{"model_type": "llama"}')),
    "no tokenizer": _in("tokenizer.json", Path.unlink),
    "tokenizer cut short": _in("tokenizer.json", _cut),
    "no generation config": _in("generation_config.json", Path.unlink),
    "no manifest": _in(MANIFEST, Path.unlink),
    "manifest a list": _in(MANIFEST, _content(b"[]")),
    "manifest of noise": _in(MANIFEST, _content(bytes(range(256)))),
    "an empty directory": _emptied,
    "a file": _file,
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_converted_model(made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(made / "cache", cache)
    directory = next((cache / "converted").iterdir())
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    CONVERSIONS[name](directory)
    load_model(str(made / "made.gguf"), dtype="float32", device="cpu", cache_dir=cache)
    told(caplog, directory)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert list((cache / "converted").iterdir()) == [directory]


def test_damage_that_shows_only_while_loading(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Large weights are not read twice at every start: their header speaks when they are loaded."""
    cache = tmp_path / "cache"
    shutil.copytree(made / "cache", cache)
    directory = next((cache / "converted").iterdir())
    size = (directory / "model.safetensors").stat().st_size
    (directory / "model.safetensors").write_bytes(b"\xff" * size)
    monkeypatch.setattr(source, "find_converted", lambda *_: directory)
    monkeypatch.setattr(gguf_convert, "damage", lambda path: None)
    load_model(str(made / "made.gguf"), dtype="float32", device="cpu", cache_dir=cache)
    told(caplog, directory)


def test_no_memory_throws_no_conversion_away(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set((made / "cache").rglob("*"))
    monkeypatch.setattr(loading, "free_memory", lambda _: 1000)
    with pytest.raises(ModelLoadError, match="No memory"):
        load_model(str(made / "made.gguf"), dtype="float32", device="cpu", cache_dir=made / "cache")
    assert set((made / "cache").rglob("*")) == before


def test_of_two_starts_at_once_one_converts(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[Path] = []
    convert = gguf_convert._convert

    def counted(path: Path, dtype: torch.dtype, target: Path) -> None:
        converted.append(target)
        convert(path, dtype, target)

    monkeypatch.setattr(gguf_convert, "_convert", counted)
    ready = threading.Barrier(2)

    def start() -> Path:
        ready.wait()
        return loading.find_model(str(made / "made.gguf"), dtype="float32", cache_dir=tmp_path).directory

    with ThreadPoolExecutor(2) as starts:  # a lock is held by one opening of the directory, so threads exclude each other too
        found = [start.result() for start in [starts.submit(start) for _ in range(2)]]
    assert found[0] == found[1]
    assert converted == found[:1]


def test_a_cache_that_is_complete_needs_no_lock_and_no_writing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_convert, "alone_in", lambda *_: pytest.fail("locked"))
    load_model(str(made / "made.gguf"), dtype="float32", device="cpu", cache_dir=made / "cache")


def test_a_file_system_without_locks_only_means_working_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with alone_in(tmp_path):
        pass
