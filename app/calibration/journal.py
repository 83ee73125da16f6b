"""The journal of a calibration: one line per text that was read, and which of them go to a store together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from app.calibration.forced import ComparedText
from app.calibration.linelog import LineLog
from csd.divergence import Divergences, Event
from csd.memory import Entry


class Journal:
    """DIR/journal.jsonl: first the settings, then readings and batches. Raises LineLogError.

    A batch is what one run brought to its end: a store takes each only once. So a run of more texts adds the new ones alone.
    """

    def __init__(self, directory: Path, settings: dict[str, Any], *, fresh: bool = False) -> None:
        self.readings: dict[str, ComparedText] = {}
        self._batches: list[list[str]] = []  # keys of readings
        self.seconds = 0.0  # spent on all readings, of earlier runs too
        self.tokens = 0  # read or generated
        self.path = directory / "journal.jsonl"
        self._log = LineLog(self.path, settings, self._resume, fresh=fresh, once=frozenset({"limit"}))
        if self._log.outdated:  # no batches were told then: what is there may be in a store by itself
            self.seal()

    def add(self, reading: ComparedText, seconds: float, tokens: int) -> None:
        events = [[event.draft, event.target, round(event.gap, 3)] for event in reading.events]
        self._log.add({"key": reading.key, "positions": reading.positions, "s": seconds, "tokens": tokens, "events": events})
        self._take(reading, seconds, tokens)

    def close(self) -> None:
        self._log.close()

    def seal(self) -> None:
        """Make a batch of the readings that are in none."""
        known = {key for batch in self._batches for key in batch}
        keys = sorted(self.readings.keys() - known)
        if keys:
            self._log.add({"batch": keys})
            self._batches.append(keys)

    def divergences(self, keys: Collection[str] | None = None) -> Divergences:
        """All readings, or these, in the order of their keys, so that the sum does not depend on how often it was cut off."""
        whole = Divergences()
        for key in sorted(self.readings if keys is None else keys):
            whole.add(self.readings[key].events, self.readings[key].positions)
        return whole

    @property
    def batches(self) -> list[tuple[str, list[Entry]]]:
        """What was sealed, for a store: (id, counts). The id tells the content, so that what a store has counts once."""
        found = []
        for keys in self._batches:
            entries = self.divergences(keys).entries()
            state = json.dumps([entries, keys])
            found.append((hashlib.sha256(state.encode()).hexdigest()[:32], entries))
        return found

    def _take(self, reading: ComparedText, seconds: float, tokens: int) -> None:
        self.readings[reading.key] = reading
        self.seconds += seconds
        self.tokens += tokens

    def _resume(self, entry: dict[str, Any]) -> None:
        if "batch" in entry:
            keys = [str(key) for key in entry["batch"]]
            if not self.readings.keys() >= set(keys):
                raise ValueError("a batch of texts that were not read")
            self._batches.append(keys)
            return
        events = tuple(Event(int(draft), int(target), float(gap)) for draft, target, gap in entry["events"])
        self._take(ComparedText(entry["key"], int(entry["positions"]), events), float(entry["s"]), int(entry["tokens"]))
