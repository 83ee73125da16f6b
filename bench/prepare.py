"""Prior rows before the clock runs: what an engine prepares in idle time, with its progress on standard error."""

from __future__ import annotations

import sys
import time

from app.engine.engine import Engine
from bench.progress import minutes

LINES = 10  # of progress, beside the first


class PriorProgress:
    """Hears how many prior rows of how many are known; writes a line for each tenth."""

    def __init__(self) -> None:
        self._began: tuple[float, int] | None = None
        self._next = 0

    def __call__(self, done: int, wanted: int) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began = now, done
            self._line(f"{done} of {wanted} known; --prior-rows asks for fewer, 0 for none; Ctrl-C keeps what is done")
            self._next = done * LINES // wanted + 1
        elif done * LINES // wanted >= self._next:
            self._next = done * LINES // wanted + 1
            began, before = self._began
            left = (now - began) / (done - before) * (wanted - done)
            self._line(f"{done} of {wanted}, about {minutes(left)} left")

    @staticmethod
    def _line(text: str) -> None:
        sys.stderr.write(f"prior rows: {text}\n")
        sys.stderr.flush()


def prepare(engine: Engine) -> None:
    """Wait until the engine has nothing left to prepare. What an interrupted wait had done is found again by the next run."""
    if not engine.instruments.settle(hear=PriorProgress()):
        sys.stderr.write("the engine gave up its work on prior rows; what it has is used\n")
