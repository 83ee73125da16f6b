"""A JSON-lines file of results as they come, so that a run which was cut off goes on where it stood."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from csd.files import sync


class LineLogError(Exception):
    """A file that cannot be used; the message says what to do."""


class LineLog:
    """First a header that tells the run, then entries, each on the disk at once."""

    def __init__(
        self,
        path: Path,
        header: dict[str, Any],
        take: Callable[[dict[str, Any]], None],
        *,
        fresh: bool = False,
        once: frozenset[str] = frozenset(),
    ) -> None:
        """take: gets each entry of an earlier run; what it raises of ValueError, KeyError and TypeError is a damaged line.
        once: settings that headers named once, and that tell no runs apart.

        Raises LineLogError for a damaged file and for one of a run with another header, unless `fresh` drops it.
        """
        self.path = path
        self._once = once
        self.outdated = False  # whether the header has one of these
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if fresh:
                path.unlink(missing_ok=True)
            if path.exists():
                self._resume(header, take)
            self._file = path.open("a", encoding="utf-8")
            sync(path.parent)
            if self._file.tell() == 0:
                self.add(header)
        except OSError as error:
            raise LineLogError(f"{path} cannot be used: {error.strerror or type(error).__name__}") from error

    def add(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry, separators=(",", ":")) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _resume(self, header: dict[str, Any], take: Callable[[dict[str, Any]], None]) -> None:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):  # cut off while it was written
            os.truncate(self.path, whole)
        lines = content[:whole].splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                if number > 1:
                    take(entry)
            except (ValueError, KeyError, TypeError) as error:
                raise LineLogError(f"{self.path}, line {number}: damaged; give --fresh or another --out") from error
            if number == 1 and isinstance(entry, dict):
                self.outdated = not self._once.isdisjoint(entry)
                entry = {name: value for name, value in entry.items() if name not in self._once}
            if number == 1 and entry != header:
                if len(lines) == 1:  # nothing was done yet: most likely a model that could not be loaded
                    os.truncate(self.path, 0)
                    return
                raise LineLogError(f"{self.path} belongs to a run with other settings: give --fresh or another --out")
