"""What plain decoding would take: the base of the speedup that the service tells."""

from __future__ import annotations

from racer.budget import CostCurve

PRIOR = 2.0  # plain steps that the calibration is worth
MEMORY = 50.0  # plain steps after which earlier ones hardly count
NEARNESS = 3.0  # a step of n times as many rows as a plain one tells n ** -NEARNESS as much about it


class PlainCost:
    """Seconds of a plain step: as calibrated at start, corrected by the steps since that were plain or nearly so.

    The curve that chooses budgets is of no use here. It leaves hiccups out, and it lays most of what steps take too long to the
    machine, whatever their size: where large trees turn out dear, plain steps would seem dear too, and the loss a gain.
    """

    def __init__(self, curve: CostCurve) -> None:
        """curve: taken as measured at start; later corrections of it are not followed."""
        self._curve = curve.fresh()
        self._taken = self._weight = 0.0

    def fresh(self) -> PlainCost:
        """The cost as calibrated."""
        return PlainCost(self._curve)

    @property
    def ratio(self) -> float:
        """Seconds of a plain step over what was calibrated."""
        return (PRIOR + self._taken) / (PRIOR + self._weight)

    def observe(self, sessions: int, rows: int, seconds: float) -> None:
        """Take in a step that verified so many rows for so many sessions, without the time for drafting."""
        weight = (sessions / rows) ** NEARNESS
        kept = 1.0 - weight / MEMORY
        self._taken = self._taken * kept + weight * seconds / float(self._curve.table(rows)[rows])
        self._weight = self._weight * kept + weight

    def seconds(self, sessions: int, tokens: int) -> float:
        """Of plain decoding for so many tokens: its step emits one for each session."""
        return tokens / sessions * float(self._curve.table(sessions)[sessions]) * self.ratio

    @property
    def step_seconds(self) -> float:
        """Of a plain step of one session; may be read from any thread."""
        return self._curve.at([1])[0] * self.ratio
