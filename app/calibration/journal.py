"""The journal of a calibration: one line per text that was read, so that a run which was cut off goes on where it stood."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from app.calibration.forced import Reading
from csd.divergence import Divergences, Event


class JournalError(Exception):
    """A journal that cannot be used; the message says what to do."""


class Journal:
    """DIR/journal.jsonl: first the settings, then readings, each written out at once."""

    def __init__(self, directory: Path, settings: dict[str, Any], *, fresh: bool = False) -> None:
        self.path = directory / "journal.jsonl"
        self.readings: dict[str, Reading] = {}
        self.seconds = 0.0  # spent on all readings, of earlier runs too
        self.tokens = 0  # read or generated
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if fresh:
                self.path.unlink(missing_ok=True)
            if self.path.exists():
                self._resume(settings)
            self._file = self.path.open("a", encoding="utf-8")
            if self._file.tell() == 0:
                self._write(settings)
        except OSError as error:
            raise JournalError(f"{directory} cannot be used: {error.strerror or type(error).__name__}") from error

    def add(self, reading: Reading, seconds: float, tokens: int) -> None:
        events = [[event.draft, event.target, round(event.gap, 3)] for event in reading.events]
        self._write({"key": reading.key, "positions": reading.positions, "s": seconds, "tokens": tokens, "events": events})
        self._take(reading, seconds, tokens)

    def close(self) -> None:
        self._file.close()

    def divergences(self) -> Divergences:
        """All readings together, in the order of their keys, so that the sum does not depend on how often it was cut off."""
        whole = Divergences()
        for key in sorted(self.readings):
            whole.add(self.readings[key].events, self.readings[key].positions)
        return whole

    def batch_id(self) -> str:
        """An id of what the journal holds: writing the same result to a store twice counts once."""
        state = json.dumps([self.divergences().entries(), sorted(self.readings)])
        return hashlib.sha256(state.encode()).hexdigest()[:32]

    def _take(self, reading: Reading, seconds: float, tokens: int) -> None:
        self.readings[reading.key] = reading
        self.seconds += seconds
        self.tokens += tokens

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry, separators=(",", ":")) + "\n")
        self._file.flush()

    def _resume(self, settings: dict[str, Any]) -> None:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):  # cut off while it was written
            os.truncate(self.path, whole)
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                entry = json.loads(line)
                if number == 1:
                    if entry != settings:
                        raise JournalError(f"{self.path} belongs to another run: give --fresh or another --out")
                    continue
                events = tuple(Event(int(draft), int(target), float(gap)) for draft, target, gap in entry["events"])
                self._take(Reading(entry["key"], int(entry["positions"]), events), float(entry["s"]), int(entry["tokens"]))
            except (ValueError, KeyError, TypeError) as error:
                raise JournalError(f"{self.path}, line {number}: damaged; give --fresh or another --out") from error
