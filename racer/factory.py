"""Which drafter a policy names."""

from __future__ import annotations

from dataclasses import replace

from racer.copy_logits import CopyLogitTable
from racer.drafter import Drafter, Policy, RacerConfig, RacerDrafter


def new_drafter(policy: Policy, config: RacerConfig, base: CopyLogitTable | None = None) -> Drafter:
    """A fresh drafter for one session."""
    return RacerDrafter(replace(config, policy=policy), base)
