"""Compiled functions are kept where they can be, and a place that cannot be written to stops nobody."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import njit

import racer
from racer.cache import find_directory, prepare

PROBE = """
import sys, tempfile
if sys.argv[1:]:
    tempfile.tempdir = sys.argv[1]
from racer.hashing import home
print(home(5, 7) == home.py_func(5, 7), home.stats.cache_path)
"""


def test_the_first_directory_that_can_be_written(tmp_path: Path) -> None:
    chosen, cache, home = tmp_path / "chosen", tmp_path / "cache", tmp_path / "home"
    names = {"RACER_CACHE_DIR": str(chosen), "XDG_CACHE_HOME": str(cache), "HOME": str(home)}
    expected = [chosen / "numba", cache / "racer-csd" / "numba", home / ".cache" / "racer-csd" / "numba"]
    for name, directory, base in zip(list(names), expected, (chosen, cache, home), strict=True):
        assert find_directory(names) == directory
        assert directory.is_dir()
        shutil.rmtree(base)
        base.write_text("a file cannot hold directories, not even for root")
        assert find_directory(names) != directory
        del names[name]


def test_the_temporary_directory_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    nothing = {"HOME": "/dev/null"}
    directory = find_directory(nothing)
    assert directory == tmp_path / f"racer-csd-numba-{os.getuid()}"
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.chmod(0o777)
    assert find_directory(nothing) is None
    directory.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    directory.symlink_to(tmp_path / "elsewhere")
    assert find_directory(nothing) is None
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")
    assert find_directory(nothing) is None


def test_a_package_that_can_be_written_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    prepare(tmp_path)
    assert "NUMBA_CACHE_DIR" not in os.environ


@pytest.mark.slow
@pytest.mark.parametrize("temporary", [True, False])
def test_a_tree_that_cannot_be_written_and_no_home(tmp_path: Path, temporary: bool) -> None:
    package = tmp_path / "racer"
    shutil.copytree(Path(racer.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__pycache__").write_text("")  # read-only for root too
    where = tmp_path / "temporary" if temporary else Path("/dev/null")
    if temporary:
        where.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "HOME": "/dev/null"}
    for name in ("NUMBA_CACHE_DIR", "RACER_CACHE_DIR", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    command = [sys.executable, "-c", PROBE, str(where)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120.0, check=False)
    assert done.returncode == 0, done.stderr
    same, kept = done.stdout.split()
    assert same == "True"
    assert kept.startswith(f"{where}/racer-csd-numba-") if temporary else kept == "None"


@njit(cache=True)
def _squared(n: int) -> int:
    return n * n


@pytest.mark.parametrize("content", [b"", b"\x80", b"noise", None])
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_damage_to_a_compiled_function_means_compiling_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, suffix: str, content: bytes | None
) -> None:
    """content: of the damaged file; None puts a directory in its place."""
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))

    def fresh() -> Any:
        return njit(cache=True)(_squared.py_func)

    assert fresh()(3) == 9
    (damaged,) = tmp_path.rglob(f"*.{suffix}")
    damaged.unlink()
    damaged.mkdir() if content is None else damaged.write_bytes(content)
    again = fresh()
    assert again(3) == 9
    assert sum(again.stats.cache_hits.values()) == 0
    assert str(damaged.with_suffix("")).split(".py")[0] in caplog.text
    if content is not None:
        caplog.clear()
        healed = fresh()
        assert healed(3) == 9
        assert sum(healed.stats.cache_hits.values()) == 1
        assert not caplog.records


@pytest.mark.slow
def test_a_change_to_another_file_of_the_package_compiles_again(tmp_path: Path) -> None:
    """What a compiled function calls is compiled into it."""
    package = tmp_path / "racer"
    package.mkdir()
    shutil.copy(Path(racer.__file__), package)
    shutil.copy(Path(racer.__file__).with_name("cache.py"), package)
    (package / "caller.py").write_text(
        "from numba import njit\nfrom racer.called import value\n@njit(cache=True)\ndef outer():\n    return value()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "kept")}
    command = [sys.executable, "-c", "from racer.caller import outer; print(outer(), sum(outer.stats.cache_hits.values()))"]
    said = []
    for value in (1, 1, 2):
        (package / "called.py").write_text(f"from numba import njit\n@njit(cache=True)\ndef value():\n    return {value}\n")
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120.0, check=True)
        said.append(done.stdout.split())
    assert said == [["1", "0"], ["1", "1"], ["2", "0"]]
