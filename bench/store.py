"""The output directory: settings, results as they come, and what a run that was cut off left there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.result import Result
from csd.files import sync, write_whole

SETTINGS, RESULTS = "settings.json", "results.jsonl"
OUTPUTS = (SETTINGS, RESULTS, "report.json", "report.md")
FREE = frozenset({"limit"})  # settings that a run which goes on may have changed: the questions of a smaller one come first


class ResultStore:
    """Appends results to DIR/results.jsonl, one line each, on the disk at once; a rerun with equal settings reads them back."""

    def __init__(self, directory: Path, settings: dict[str, Any], *, fresh: bool = False) -> None:
        """Raises BenchError where the directory holds a run with other settings (and `fresh` does not drop it)."""
        self.directory = directory
        self.results: dict[tuple[str, int, str], Result] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if fresh:
                self._drop()
            self._check(settings)
            self._read()
            self._file = (directory / RESULTS).open("a", encoding="utf-8")
            sync(directory)
        except OSError as error:
            raise BenchError(f"{directory} cannot be used: {error.strerror or type(error).__name__}") from error
        self.resumed = len(self.results)  # results of earlier runs

    def add(self, result: Result) -> None:
        self._file.write(json.dumps(result.to_json(), separators=(",", ":")) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.results[result.key] = result

    def close(self) -> None:
        self._file.close()

    def _drop(self) -> None:
        for name in OUTPUTS:
            (self.directory / name).unlink(missing_ok=True)

    def _check(self, settings: dict[str, Any]) -> None:
        path = self.directory / SETTINGS
        if not path.exists():
            if (self.directory / RESULTS).exists():
                raise BenchError(f"{self.directory} holds results without their settings: give --fresh or another --out")
            write_whole(path, json.dumps(settings, indent=2) + "\n")
            return
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise BenchError(f"{path} is damaged: give --fresh or another --out")
        if not self._has_results():  # nothing was done yet: most likely a model that could not be loaded
            write_whole(path, json.dumps(settings, indent=2) + "\n")
            return
        names = (settings.keys() | found.keys()) - FREE
        other = sorted(name for name in names if settings.get(name) != found.get(name))
        if other:
            said = ", ".join(f"{name} (there {found.get(name)!r}, now {settings.get(name)!r})" for name in other)
            raise BenchError(f"{self.directory} holds a run with other settings: {said}; give --fresh or another --out")
        if settings != found:
            write_whole(path, json.dumps(settings, indent=2) + "\n")

    def _has_results(self) -> bool:
        path = self.directory / RESULTS
        return path.exists() and path.stat().st_size > 0

    def _read(self) -> None:
        """Take the results of earlier runs in. A last line without its end was cut off while it was written: drop it."""
        path = self.directory / RESULTS
        if not path.exists():
            return
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)
        self._take(content[:whole].splitlines(), path)

    def _take(self, lines: Iterable[bytes], path: Path) -> None:
        for number, line in enumerate(lines, start=1):
            try:
                result = Result.from_json(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BenchError(f"{path}, line {number}: damaged; give --fresh or another --out") from error
            self.results[result.key] = result
