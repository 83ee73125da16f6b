"""A sign of life of the worker thread, for a watchdog."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pulse:
    """When the worker last showed that it lives: once a round, and at the beginning and the end of each forward."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def beat(self) -> None:
        self._last = self._clock()

    @property
    def age(self) -> float:
        """Seconds since the last beat; may be read from any thread."""
        return self._clock() - self._last
