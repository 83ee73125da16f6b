"""Who may be rescued: the calibrated rule (memory nominates, gate admits) and the static lossy rule it is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from csd.memory import CorrectionMemory


def gate(z_draft: float, z_target: float, tau: float) -> bool:
    """Semantic Consistency Gating: z_draft - z_target >= ln(tau), that is p(draft) >= tau * p(target).

    On the target's raw logits of one row, so neither a softmax nor the temperature comes in. CSD paper, section SCG.
    """
    return z_draft - z_target >= math.log(tau)


class Rule(Protocol):
    """What a walk asks at a mismatch."""

    @property
    def against_likeliest(self) -> bool:
        """Whether a child's logit is compared with the row's highest; otherwise with that of the target's token."""

    def nominates(self, memory: CorrectionMemory | None, draft: int, target: int) -> bool:
        """Whether `draft` may stand for `target`, before any logit is looked at."""

    def admits(self, z_draft: float, z_reference: float) -> bool:
        """Whether the target finds the draft token plausible here; raw logits."""


@dataclass(frozen=True, slots=True)
class CsdRule:
    """Rescue iff count > lambda (OCM) and z(draft) - z(target) >= ln(tau) (SCG), after arXiv 2604.13634.

    Without use_gate it is the paper's "OCM only", without use_memory its "SCG only". min_share (0 to 1) is an addition: the
    least share of the pair against the agreements on its draft token; 0 is the paper's rule. ValueError names the field.
    """

    lambda_: float = 6
    tau: float = 0.01
    use_memory: bool = True
    use_gate: bool = True
    min_share: float = 0.0

    def __post_init__(self) -> None:
        if not self.lambda_ >= 0:
            raise ValueError("lambda must be 0 or more")
        if not 0 < self.tau <= 1:
            raise ValueError("tau must be above 0 and at most 1")
        if not 0 <= self.min_share <= 1:
            raise ValueError("min_share must be from 0 to 1")
        if not (self.use_memory or self.use_gate):
            raise ValueError("use_memory and use_gate cannot both be off: every draft token would be kept")

    @property
    def against_likeliest(self) -> bool:
        return False

    def nominates(self, memory: CorrectionMemory | None, draft: int, target: int) -> bool:
        if not self.use_memory:
            return True
        if memory is None or memory.count(draft, target) <= self.lambda_:
            return False
        return self.min_share == 0 or memory.share(draft, target) >= self.min_share

    def admits(self, z_draft: float, z_reference: float) -> bool:
        return not self.use_gate or gate(z_draft, z_reference, self.tau)


@dataclass(frozen=True, slots=True)
class StaticRule:
    """Lossy SD, the paper's baseline: keep a draft token iff p(draft) >= threshold * (highest p of the row)."""

    threshold: float = 0.6

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError("threshold must be above 0 and at most 1")

    @property
    def against_likeliest(self) -> bool:
        return True

    def nominates(self, memory: CorrectionMemory | None, draft: int, target: int) -> bool:
        return True

    def admits(self, z_draft: float, z_reference: float) -> bool:
        return gate(z_draft, z_reference, self.threshold)
