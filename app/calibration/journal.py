"""The journal of a calibration: one line per text that was read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from app.calibration.forced import Reading
from app.calibration.linelog import LineLog
from csd.divergence import Divergences, Event


class Journal:
    """DIR/journal.jsonl: first the settings, then readings. Raises LineLogError."""

    def __init__(self, directory: Path, settings: dict[str, Any], *, fresh: bool = False) -> None:
        self.readings: dict[str, Reading] = {}
        self.seconds = 0.0  # spent on all readings, of earlier runs too
        self.tokens = 0  # read or generated
        self.path = directory / "journal.jsonl"
        self._log = LineLog(self.path, settings, self._resume, fresh=fresh)

    def add(self, reading: Reading, seconds: float, tokens: int) -> None:
        events = [[event.draft, event.target, round(event.gap, 3)] for event in reading.events]
        self._log.add({"key": reading.key, "positions": reading.positions, "s": seconds, "tokens": tokens, "events": events})
        self._take(reading, seconds, tokens)

    def close(self) -> None:
        self._log.close()

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

    def _resume(self, entry: dict[str, Any]) -> None:
        events = tuple(Event(int(draft), int(target), float(gap)) for draft, target, gap in entry["events"])
        self._take(Reading(entry["key"], int(entry["positions"]), events), float(entry["s"]), int(entry["tokens"]))
