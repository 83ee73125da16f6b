"""Acceptance rules: the calibrated one (memory nominates, gate admits) and the static lossy one it is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from csd.memory import CorrectionMemory


def gate(z_draft: float, z_highest: float, tau: float) -> bool:
    """Semantic Consistency Gating: z_draft - z_highest >= ln(tau), that is p(draft) >= tau * (highest p of the row).

    CSD paper, section SCG. A difference of logits needs neither softmax nor temperature. In the paper decoding is greedy, so
    the highest logit is that of the target's own token. Here it is the row's highest when the target samples too: compared
    with an improbable sampled token, any draft would be admitted.
    """
    return z_draft - z_highest >= math.log(tau)


class Rule(Protocol):
    """The two questions a walk asks at a mismatch."""

    def nominates(self, memory: CorrectionMemory | None, draft: int, target: int) -> bool:
        """Whether `draft` may replace `target`, before any logits are read. memory: None where no table counts this source."""

    def admits(self, z_draft: float, z_highest: float, *, changed: bool = False) -> bool:
        """Whether the draft token is plausible in one row of logits. changed: the request's settings changed the row."""


@dataclass(frozen=True, slots=True)
class CsdRule:
    """Rescue iff count > lambda (OCM) and z(draft) - max(z) >= ln(tau) (SCG), after arXiv 2604.13634.

    Without use_gate it is the paper's "OCM only", without use_memory its "SCG only". The gate on a row that the request's
    settings changed always applies, so a rescue never emits a token that the request excludes. ValueError names the field.
    """

    lambda_: float = 6
    tau: float = 0.01
    use_memory: bool = True
    use_gate: bool = True

    def __post_init__(self) -> None:
        if not self.lambda_ >= 0:
            raise ValueError("lambda must be 0 or more")
        if not 0 < self.tau <= 1:
            raise ValueError("tau must be above 0 and at most 1")
        if not (self.use_memory or self.use_gate):
            raise ValueError("use_memory and use_gate cannot both be off: every draft token would be kept")

    def nominates(self, memory: CorrectionMemory | None, draft: int, target: int) -> bool:
        return not self.use_memory or (memory is not None and memory.count(draft, target) > self.lambda_)

    def admits(self, z_draft: float, z_highest: float, *, changed: bool = False) -> bool:
        return not (self.use_gate or changed) or gate(z_draft, z_highest, self.tau)


@dataclass(frozen=True, slots=True)
class StaticRule:
    """Lossy SD, the paper's baseline: keep a draft token iff p(draft) >= threshold * (highest p of the row)."""

    threshold: float = 0.6

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError("threshold must be above 0 and at most 1")

    def nominates(self, memory: CorrectionMemory | None, draft: int, target: int) -> bool:
        return True

    def admits(self, z_draft: float, z_highest: float, *, changed: bool = False) -> bool:
        return gate(z_draft, z_highest, self.threshold)
