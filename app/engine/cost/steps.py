"""What the steps of an engine cost: the curve that budgets are chosen by, and plain decoding to compare with."""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.cost.plain import PlainCost
from racer.budget import CostCurve


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
        """Take in a step that verified this many rows for this many sessions. seconds: without the time for drafting."""
        if self.refine:
            self.curve.observe(rows, seconds)
            self.plain.observe(sessions, rows, seconds)
