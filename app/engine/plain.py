"""What plain decoding would take: the base of the speedup that the service tells."""

from __future__ import annotations

import math

from racer.budget import CostCurve

KEPT = 0.99  # of the weight of earlier steps, with each new one
PRIOR = 0.5  # steps that the calibration of a plain step is worth
FLAT = 0.1  # the same of the shape of the curve: where all steps have one size, its shape is what they are laid to


class PlainPace:
    """Seconds of a plain step: as calibrated at start, corrected by what the steps since have taken.

    The steps tell how much more or less than calibrated they took, and how that goes with their size (least squares over the
    logarithm of rows per session); a plain step is where that line begins. The curve that chooses budgets is of no use here. It
    leaves hiccups out, and it lays what steps take too long to the machine, whatever their size: where large trees turn out
    dear, plain steps would seem dear too, and the loss a gain.
    """

    def __init__(self, curve: CostCurve) -> None:
        """curve: as measured at start; later corrections of it are not followed."""
        self._curve = CostCurve(curve.sizes.tolist(), curve.seconds.tolist())
        self._n = self._x = self._xx = self._y = self._xy = 0.0  # sums over steps; x: size, y: seconds over those calibrated
        self.ratio = 1.0  # seconds of a plain step over what was calibrated

    def observe(self, sessions: int, rows: int, seconds: float) -> None:
        """Take in a step that verified so many rows for so many sessions, without the time for drafting."""
        x, y = math.log(rows / sessions), seconds / float(self._curve.table(rows)[rows])
        self._n = self._n * KEPT + 1.0
        self._x = self._x * KEPT + x
        self._xx = self._xx * KEPT + x * x
        self._y = self._y * KEPT + y
        self._xy = self._xy * KEPT + x * y
        self.ratio = self._solve()

    def _solve(self) -> float:
        """a of y = a + b x, with the priors a = 1 and b = 0; kept near what there is."""
        n, xx = self._n + PRIOR, self._xx + FLAT
        level = ((self._y + PRIOR) * xx - self._x * self._xy) / (n * xx - self._x * self._x)
        mean = (self._y + PRIOR) / n
        return min(max(level, min(mean, 1.0) / 4.0), max(mean, 1.0) * 4.0)

    def seconds(self, sessions: int, tokens: int) -> float:
        """Of plain decoding for so many tokens: its step emits one for each session."""
        return tokens / sessions * float(self._curve.table(sessions)[sessions]) * self.ratio

    @property
    def step_seconds(self) -> float:
        """Of a plain step of one session; may be read from any thread."""
        return self._curve.at([1])[0] * self.ratio
