"""What the steps of an engine cost: the curve that budgets are chosen by, and plain decoding, to compare with."""

from __future__ import annotations

from dataclasses import dataclass

from racer.budget import CostCurve

PRIOR = 2.0  # plain steps that the calibration counts for
MEMORY = 50.0  # plain steps after which earlier ones hardly count
NEARNESS = 3.0  # a step with n times the rows of a plain one counts n ** -NEARNESS as much


class PlainCost:
    """Seconds of a plain step: as calibrated at start, corrected by the steps since that were plain or nearly so.

    It is the base of the reported speedup. The curve that chooses budgets cannot be: it leaves out hiccups, and it takes most
    of what steps take too long, whatever their size, for a slower machine. Where large trees turn out more expensive than
    calibrated, plain steps would seem more expensive too, and a loss would look like a gain.
    """

    def __init__(self, curve: CostCurve) -> None:
        """curve: as measured at start; its later corrections are not followed."""
        self._curve = curve.fresh()
        self._taken = self._weight = 0.0

    def fresh(self) -> PlainCost:
        """The cost as calibrated."""
        return PlainCost(self._curve)

    @property
    def ratio(self) -> float:
        """Seconds of a plain step over the seconds calibrated."""
        return (PRIOR + self._taken) / (PRIOR + self._weight)

    def observe(self, sessions: int, rows: int, seconds: float) -> None:
        """Learn from a step that verified `rows` rows for `sessions` sessions. seconds: without the time for drafting."""
        weight = (sessions / rows) ** NEARNESS
        kept = 1.0 - weight / MEMORY
        self._taken = self._taken * kept + weight * seconds / float(self._curve.table(rows)[rows])
        self._weight = self._weight * kept + weight

    def seconds(self, sessions: int, tokens: int) -> float:
        """Of plain decoding for `tokens` tokens: each step emits one token per session."""
        return tokens / sessions * float(self._curve.table(sessions)[sessions]) * self.ratio

    @property
    def step_seconds(self) -> float:
        """Of a plain step of one session; may be read from any thread."""
        return self._curve.at([1])[0] * self.ratio


@dataclass(slots=True)
class StepCosts:
    """curve: seconds of a step by its rows. plain: of plain decoding. refine: whether each step corrects both."""

    curve: CostCurve
    plain: PlainCost
    refine: bool = True

    def fresh(self) -> StepCosts:
        """The costs as calibrated."""
        return StepCosts(self.curve.fresh(), self.plain.fresh(), self.refine)

    def observe(self, sessions: int, rows: int, seconds: float) -> None:
        """Learn from a step that verified `rows` rows for `sessions` sessions. seconds: without the time for drafting."""
        if self.refine:
            self.curve.observe(rows, seconds)
            self.plain.observe(sessions, rows, seconds)
