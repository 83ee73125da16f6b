"""Where the time of a step goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.engine.events import PHASES


class Stopwatch:
    """Seconds by phase of one step."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._clock = clock
        self._started = clock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = self._clock()
        try:
            yield
        finally:
            self.seconds[name] += self._clock() - started

    @property
    def elapsed(self) -> float:
        """Seconds since it was made."""
        return self._clock() - self._started
