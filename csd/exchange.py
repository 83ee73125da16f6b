"""The correction memory as a file: JSON Lines, a header and one divergence a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from csd.files import replacing
from csd.fingerprint import SCHEMA
from csd.memory import EQUAL, Entry, fault

FORMAT = "racer-ocm"
MAX_LINE = 4096  # bytes; valid lines have about a hundred
HEADER_FIELDS = {"format", "schema", "fingerprint", "entries"}
ENTRY_FIELDS = {"draft", "target", "count"}


class ExchangeError(ValueError):
    """A file that cannot be read or written as a table. The message gives place and reason and never repeats the content."""


def write(file: str | os.PathLike[str] | BinaryIO, fingerprint: str, entries: Iterable[Entry]) -> int:
    """Write a table and return its number of entries. A file at a path is written whole or not at all.

    entries: (draft, target, count), each pair once.
    """
    rows = list(entries)
    lines = _lines(fingerprint, rows)
    if not isinstance(file, str | os.PathLike):
        file.writelines(lines)
        return len(rows)
    path = Path(file)
    try:
        with replacing(path) as stream:
            stream.writelines(lines)
    except OSError as error:
        raise ExchangeError(f"{path}: cannot be written: {error.strerror}") from error
    return len(rows)


def _lines(fingerprint: str, rows: list[Entry]) -> Iterator[bytes]:
    yield _line({"format": FORMAT, "schema": SCHEMA, "fingerprint": fingerprint, "entries": len(rows)})
    for number, (draft, target, count) in enumerate(rows, 1):
        found = fault(draft, target, count) or (EQUAL if draft == target else None)
        if found:
            raise ExchangeError(f"entry {number}: {found}")
        whole = isinstance(count, float) and count.is_integer()
        yield _line({"draft": draft, "target": target, "count": int(count) if whole else count})


def _line(values: dict[str, object]) -> bytes:
    return json.dumps(values).encode() + b"\n"


def read(
    file: str | os.PathLike[str] | BinaryIO, fingerprint: str, *, any_fingerprint: bool = False, name: str = "table"
) -> list[Entry]:
    """Read a whole table, or raise ExchangeError.

    any_fingerprint: accept a table made for another target, draft source or vocabulary. name: of a stream, in error messages.
    """
    if not isinstance(file, str | os.PathLike):
        return _Reader(file, name).table(None if any_fingerprint else fingerprint)
    path = Path(file)
    try:
        with path.open("rb") as stream:
            return _Reader(stream, str(path)).table(None if any_fingerprint else fingerprint)
    except OSError as error:
        raise ExchangeError(f"{path}: cannot be read: {error.strerror}") from error


def read_any(stream: BinaryIO, name: str) -> tuple[str, list[Entry]]:
    """Read a whole table made for any models; returns its fingerprint and entries. name: of the stream, in error messages."""
    reader = _Reader(stream, name)
    entries = reader.table(None)
    return reader.fingerprint, entries


class _Reader:
    """Reads line by line and counts the lines for error messages. fingerprint: from the header, once it has been read."""

    fingerprint = ""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.stream = stream
        self.name = name
        self.number = 0

    def table(self, fingerprint: str | None) -> list[Entry]:
        expected = self._header(fingerprint)
        rows: list[Entry] = []
        pairs: set[tuple[int, int]] = set()
        while (values := self._next()) is not None:
            if len(pairs) == expected:
                self._fail("there are more entries than the header says")
            row = self._entry(values)
            if row[:2] in pairs:
                self._fail("this pair was there before")
            pairs.add(row[:2])
            if row[0] != row[1]:  # older tables could hold counts of equal tokens, which have no use
                rows.append(row)
        if len(pairs) < expected:
            self._fail(f"the file ends here, {expected - len(pairs)} entries short of what the header says")
        return rows

    def _header(self, fingerprint: str | None) -> int:
        values = self._next()
        if values is None:
            self.number = 1
            self._fail("the file is empty")
        if values.get("format") != FORMAT or values.keys() != HEADER_FIELDS:
            self._fail("this is not the header of a correction memory")
        if type(values["schema"]) is not int or values["schema"] != SCHEMA:
            self._fail(f"schema must be {SCHEMA}")
        if not isinstance(values["fingerprint"], str):
            self._fail("fingerprint must be a string")
        if fingerprint is not None and values["fingerprint"] != fingerprint:
            self._fail("the table was made for another target, draft source or vocabulary (fingerprints differ)")
        self.fingerprint = values["fingerprint"]
        expected = values["entries"]
        if type(expected) is not int or expected < 0:
            self._fail("entries must be a whole number, 0 or more")
        return int(expected)

    def _entry(self, values: dict[str, Any]) -> Entry:
        if values.keys() != ENTRY_FIELDS:
            self._fail("an entry has exactly draft, target and count")
        found = fault(values["draft"], values["target"], values["count"])
        if found:
            self._fail(found)
        return values["draft"], values["target"], float(values["count"])

    def _next(self) -> dict[str, Any] | None:
        """The JSON object on the next line; None after the last."""
        line = self.stream.readline(MAX_LINE + 1)
        if not line:
            return None
        self.number += 1
        if len(line) > MAX_LINE:
            self._fail(f"the line is longer than {MAX_LINE} bytes")
        values: object = None
        try:
            values = json.loads(line.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
        except UnicodeDecodeError:
            self._fail("the line is not UTF-8")
        except (ValueError, RecursionError):
            self._fail("the line is not a JSON object")
        if not isinstance(values, dict):
            self._fail("the line is not a JSON object")
        return values

    def _fail(self, reason: str) -> NoReturn:
        raise ExchangeError(f"{self.name}, line {self.number}: {reason}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a field is given twice")
    return values


def _no_constant(name: str) -> NoReturn:
    raise ValueError("no JSON number")
