"""The recent speedup: a ratio of two sums with exponential decay."""

from __future__ import annotations

import math


class RecentRatio:
    """sum(gained) / sum(spent), each term weighted by exp(-age / window). Age counts only what was spent since.

    So an idle service keeps the ratio of its last work, and a busy one forgets within about `window` seconds of work.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._gained = self._spent = 0.0

    def add(self, gained: float, spent: float) -> None:
        kept = math.exp(-spent / self._window)
        self._gained = self._gained * kept + gained
        self._spent = self._spent * kept + spent

    @property
    def value(self) -> float:
        """The ratio; 0 before anything was spent."""
        return self._gained / self._spent if self._spent else 0.0
