"""What decoding teaches an engine of its models and its machine, as one thing that can be put aside and brought back."""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.cost.steps import StepCosts
from app.engine.draft.control import DraftAcceptance, Throughput
from racer.auto import Shared
from racer.budget import CostCurve


@dataclass(frozen=True, slots=True)
class Learning:
    """Acceptance by class (for exact and for csd), step costs and the throughput of the last steps; nothing of anyone's text.

    The draft_ fields are None without a draft model, costs where only plain decoding runs.
    """

    shared: Shared
    shared_csd: Shared
    costs: StepCosts | None
    throughput: Throughput
    draft_acceptance: DraftAcceptance | None = None
    draft_curve: CostCurve | None = None

    def fresh(self) -> Learning:
        """What was there when the engine started, with the same prior rows: those are the model's."""
        prior = self.shared.prior_ids, self.shared.prior_probs
        return Learning(
            Shared(*prior),
            Shared(*prior),
            None if self.costs is None else self.costs.fresh(),
            Throughput(),
            None if self.draft_acceptance is None else DraftAcceptance(),
            None if self.draft_curve is None else self.draft_curve.fresh(),
        )
