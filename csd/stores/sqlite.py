"""The default store: one SQLite file, which several processes can share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from csd.fingerprint import SCHEMA
from csd.memory import MAX_COUNT, Increment
from csd.stores.base import (
    KEPT_BATCHES,
    Batch,
    Snapshot,
    StoreError,
    StoreMisfit,
    StoreUnavailable,
    first_version,
)

T = TypeVar("T")

APPLICATION = 0x52435344  # "RCSD", in the header of each file of ours
BUSY = 2.0  # seconds to wait for another process's write

TABLES = """
CREATE TABLE meta (fingerprint TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE pairs (
    fingerprint TEXT NOT NULL, draft INTEGER NOT NULL, target INTEGER NOT NULL, count REAL NOT NULL,
    PRIMARY KEY (fingerprint, draft, target)
) WITHOUT ROWID;
CREATE INDEX pairs_by_count ON pairs (fingerprint, count);
CREATE TABLE batches (sequence INTEGER PRIMARY KEY AUTOINCREMENT, fingerprint TEXT NOT NULL, id TEXT NOT NULL);
CREATE UNIQUE INDEX batches_by_id ON batches (fingerprint, id);
CREATE INDEX batches_by_sequence ON batches (fingerprint, sequence);
"""
ADD = """
INSERT INTO pairs (fingerprint, draft, target, count) VALUES (?, ?, ?, ?)
ON CONFLICT (fingerprint, draft, target) DO UPDATE SET count = count + excluded.count
"""
BUMP = """
INSERT INTO meta (fingerprint, version) VALUES (?, ?)
ON CONFLICT (fingerprint) DO UPDATE SET version = version + 1
"""
TRIM = """
DELETE FROM pairs WHERE (fingerprint, draft, target) IN
    (SELECT fingerprint, draft, target FROM pairs WHERE fingerprint = ? ORDER BY count LIMIT ?)
"""
FORGET = """
DELETE FROM batches WHERE fingerprint = ?1 AND sequence <=
    (SELECT sequence FROM batches WHERE fingerprint = ?1 ORDER BY sequence DESC LIMIT 1 OFFSET ?2)
"""


class SqliteStore:
    """One connection, used in one background thread. A batch is applied once it is on disk.

    A damaged file, or one of another program, is not changed. A file that was deleted or replaced meanwhile is opened again.
    """

    def __init__(self, path: Path, fingerprint: str, *, max_entries: int) -> None:
        self.path = path
        self.fingerprint = fingerprint
        self.max_entries = max_entries
        self.name = f"sqlite:{path}"
        self._executor = ThreadPoolExecutor(1, "racer-sqlite")
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    async def open(self) -> None:
        await self._run(self._connected)

    async def apply(self, batch: Batch) -> int:
        return await self._run(lambda: self._apply(batch))

    async def version(self) -> int:
        return await self._run(lambda: self._version(self._connected()))

    async def load(self) -> Snapshot:
        return await self._run(self._load)

    async def replace(self, entries: Sequence[Increment]) -> None:
        await self._run(lambda: self._replace(entries))

    async def clear(self) -> None:
        await self._run(self._clear)

    async def close(self) -> None:
        with contextlib.suppress(StoreError, RuntimeError):
            await self._run(self._disconnect)
        self._executor.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        def translated() -> T:
            try:
                return work()
            except (sqlite3.Error, OSError) as error:
                raise self._translated(error) from error

        return await asyncio.get_running_loop().run_in_executor(self._executor, translated)

    # -- in the store's thread -------------------------------------------------------------------------------------------

    def _apply(self, batch: Batch) -> int:
        connection = self._connected()
        key = self.fingerprint
        with _writing(connection):
            if connection.execute("SELECT 1 FROM batches WHERE fingerprint = ? AND id = ?", (key, batch.id)).fetchone():
                return self._version(connection)
            connection.execute("INSERT INTO batches (fingerprint, id) VALUES (?, ?)", (key, batch.id))
            connection.executemany(ADD, [(key, *increment) for increment in batch.increments])
            connection.execute(BUMP, (key, first_version()))
            self._trim(connection)
            connection.execute(FORGET, (key, KEPT_BATCHES))
            return self._version(connection)

    def _trim(self, connection: sqlite3.Connection) -> None:
        key = self.fingerprint
        (held,) = connection.execute("SELECT count(*) FROM pairs WHERE fingerprint = ?", (key,)).fetchone()
        if held > self.max_entries:  # drop a tenth more than needed, so that new pairs can reach higher counts
            connection.execute(TRIM, (key, held - self.max_entries + self.max_entries // 10))

    def _version(self, connection: sqlite3.Connection) -> int:
        row = connection.execute("SELECT version FROM meta WHERE fingerprint = ?", (self.fingerprint,)).fetchone()
        return int(row[0]) if row else 0

    def _load(self) -> Snapshot:
        connection = self._connected()
        query = """SELECT draft, target, min(count, ?) FROM pairs WHERE fingerprint = ? AND draft != target
            ORDER BY count DESC LIMIT ?"""
        with _transaction(connection, "BEGIN"):
            version = self._version(connection)
            rows: list[Any] = connection.execute(query, (MAX_COUNT, self.fingerprint, self.max_entries)).fetchall()
        return Snapshot(version, rows)

    def _replace(self, entries: Sequence[Increment]) -> None:
        connection = self._connected()
        with _writing(connection):
            connection.execute("DELETE FROM pairs WHERE fingerprint = ?", (self.fingerprint,))
            connection.executemany(ADD, [(self.fingerprint, *entry) for entry in entries])
            connection.execute(BUMP, (self.fingerprint, first_version()))
            self._trim(connection)

    def _clear(self) -> None:
        connection = self._connected()
        with _writing(connection):
            connection.execute("DELETE FROM pairs WHERE fingerprint = ?", (self.fingerprint,))
            connection.execute(BUMP, (self.fingerprint, first_version()))

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and self._file != self._identity():
            self._disconnect()
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=BUSY, isolation_level=None)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._file = connection, self._identity()
        return self._connection

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Create the tables in an empty file; otherwise check that the file is ours and intact. Changes no other file."""
        with _writing(connection):
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (schema,) = connection.execute("PRAGMA user_version").fetchone()
            (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if (application, schema, objects) == (0, 0, 0):
                for statement in TABLES.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
            elif application != APPLICATION:
                raise StoreMisfit(f"{self.path} is another program's database; name another file", "schema")
            elif schema != SCHEMA:
                raise StoreMisfit(
                    f"{self.path} has schema {schema}, this version reads schema {SCHEMA}; name another file", "schema"
                )
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise self._damaged()

    def _damaged(self) -> StoreMisfit:
        return StoreMisfit(f"{self.path} is damaged or no SQLite file; move it away or name another file", "corrupt")

    def _translated(self, error: sqlite3.Error | OSError) -> StoreError:
        """Primary result codes: https://www.sqlite.org/rescode.html"""
        code = getattr(error, "sqlite_errorcode", None)
        primary = code & 0xFF if code is not None else None
        if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return self._damaged()
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreUnavailable(f"{self.path} is locked by another process", "busy")
        if primary == sqlite3.SQLITE_FULL:
            return StoreUnavailable(f"the disk of {self.path} is full", "full")
        if isinstance(error, OSError) or primary in (
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_PERM,
        ):
            return StoreMisfit(f"{self.path} cannot be opened for writing; check the path and its permissions", "permission")
        if primary == sqlite3.SQLITE_ERROR:  # a table or column is missing
            return self._damaged()
        return StoreUnavailable(f"{self.path} cannot be used: {getattr(error, 'sqlite_errorname', 'unknown error')}", "other")


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _writing(connection: sqlite3.Connection) -> contextlib.AbstractContextManager[None]:
    return _transaction(connection, "BEGIN IMMEDIATE")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging. SQLite does not wait for other connections here, so this loop does."""
    deadline = time.monotonic() + BUSY
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
