"""How soon a place becomes free: the Retry-After of those who are turned away."""

from __future__ import annotations

import math

RECENT = 8  # generations over which the mean is taken, about
LONGEST = 60  # seconds


class WaitEstimate:
    """A running mean of how long generations ran."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def ended(self, seconds: float) -> None:
        """A generation held its place for this long."""
        self._mean = seconds if self._mean is None else self._mean + (seconds - self._mean) / RECENT

    def wait(self, ahead: int, lanes: int) -> int:
        """Seconds until `ahead` generations will have had their turn on `lanes` places: 1 to 60; 1 where nothing is known."""
        return max(1, min(LONGEST, math.ceil((self._mean or 0.0) * ahead / lanes)))
