"""SQLite: the file that is not what it should be."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from csd.stores.base import Batch, StoreMisfit, StoreUnavailable
from tests.csd.stores.conftest import NewStore


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


def test_missing_directories_are_made(tmp_path: Path, new_store: NewStore) -> None:
    file = tmp_path / "a" / "b" / "memory.db"
    new_store(f"sqlite:///{file}").add((1, 2, 1.0))
    assert file.is_file()


def test_no_database_is_left_alone(file: Path, new_store: NewStore) -> None:
    file.write_bytes(b"my diary " * 1000)
    store = new_store(f"sqlite:{file}")
    for use in (store.open, store.load, lambda: store.add((1, 2, 1.0)), store.clear):
        with pytest.raises(StoreMisfit, match=r"memory\.db is damaged.*name another file") as caught:
            use()
        assert caught.value.kind == "corrupt"
    assert file.read_bytes() == b"my diary " * 1000


def test_a_damaged_page_is_found_at_once(file: Path, new_store: NewStore) -> None:
    store = new_store(f"sqlite:{file}")
    store.add(*((4000, token, 1.0) for token in range(4000)))
    store.close()
    damaged = bytearray(file.read_bytes())
    damaged[8192 : 8192 + 8192] = b"\xff" * 8192
    file.write_bytes(damaged)
    with pytest.raises(StoreMisfit, match="damaged"):
        new_store(f"sqlite:{file}").open()
    assert file.read_bytes() == damaged


def test_another_program_s_database_is_left_alone(file: Path, new_store: NewStore) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE pairs (a)")
    connection.close()
    before = file.read_bytes()
    with pytest.raises(StoreMisfit, match="another program's database"):
        new_store(f"sqlite:{file}").open()
    assert file.read_bytes() == before


def test_another_schema_is_refused(file: Path, new_store: NewStore) -> None:
    new_store(f"sqlite:{file}").add((1, 2, 1.0))
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreMisfit, match="schema 99"):
        new_store(f"sqlite:{file}").add((1, 2, 1.0))


def test_a_directory_is_refused(tmp_path: Path, new_store: NewStore) -> None:
    with pytest.raises(StoreMisfit, match="check the path"):
        new_store(f"sqlite:{tmp_path}").open()


def test_a_lock_held_by_another_is_waited_for_and_passes(
    file: Path, new_store: NewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("csd.stores.sqlite.BUSY", 0.1)
    store = new_store(f"sqlite:{file}")
    store.open()
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    batch = Batch(((1, 2, 1.0),))
    with pytest.raises(StoreUnavailable, match="locked by another process"):
        store.apply(batch)
    assert store.counts() == {}  # readers are not kept out
    other.execute("ROLLBACK")
    other.close()
    store.apply(batch)
    assert store.counts() == {(1, 2): 1.0}


def test_a_deleted_file_is_made_anew(file: Path, new_store: NewStore) -> None:
    store = new_store(f"sqlite:{file}")
    version = store.add((1, 2, 1.0))
    for name in (file.name, f"{file.name}-wal", f"{file.name}-shm"):
        file.with_name(name).unlink(missing_ok=True)
    assert store.version() == 0
    assert store.add((3, 4, 1.0)) > version + 1
    assert new_store(f"sqlite:{file}").counts() == {(3, 4): 1.0}
