"""Files that are written whole or not at all, with their content on the disk before their name is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from csd import files
from csd.files import replacing, sync_tree, write_whole


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    write_whole(path, "old")

    def lines() -> Iterator[bytes]:
        yield b"half of the ne"
        raise RuntimeError

    with pytest.raises(RuntimeError), replacing(path) as stream:
        stream.writelines(lines())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_is_on_the_disk_before_the_name_and_the_name_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else f"{os.fstat(descriptor).st_size} bytes")
        sync(descriptor)

    def replaced(source: Path, target: Path) -> Path:
        done.append("name")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    write_whole(tmp_path / "kept", b"12345")
    assert done == ["5 bytes", "name", "directory"]


def test_two_writers_at_once_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    with replacing(path) as first, replacing(path) as second:
        first.write(b"first" * 10)
        second.write(b"second" * 10)
    assert path.read_bytes() == b"first" * 10
    assert list(tmp_path.iterdir()) == [path]


def test_everything_below_a_directory_is_brought_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    for name in ("a", "below/b"):
        (tmp_path / name).touch()
    seen: set[Path] = set()
    monkeypatch.setattr(files, "sync", seen.add)
    sync_tree(tmp_path)
    assert seen == {tmp_path, tmp_path / "a", tmp_path / "below", tmp_path / "below/b"}
