"""Makes the drafter of a policy, and compiles its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np

from racer.auto import AutoDrafter, Shared, WarmLayer
from racer.automaton import FIRST_NODES, NgramAutomaton
from racer.drafter import Drafter, Policy, RacerConfig
from racer.paper import RacerDrafter
from racer.pld import PldDrafter
from racer.recycling import RecyclingDrafter


def new_drafter(policy: Policy, config: RacerConfig, warm: WarmLayer | None = None, shared: Shared | None = None) -> Drafter:
    """A new drafter for one session. warm: rows shared with other sessions. shared: what `auto` learns about the target."""
    config = replace(config, policy=policy)
    if policy == "auto":
        return AutoDrafter(config, warm, shared)
    base = warm.rows if warm else None
    if policy == "pld":
        return PldDrafter()
    if policy == "recycling":
        return RecyclingDrafter(config.breadth, config.table_rows, base)
    return RacerDrafter(config, base)


def warm_up(config: RacerConfig, policies: Sequence[Policy] = get_args(Policy)) -> None:
    """Compile the kernels of these policies, or load them from the cache, so that no request waits for it."""
    tokens = np.arange(4)
    ids, probs = np.ones((4, config.breadth), np.int64), np.ones((4, config.breadth), np.float32)
    small = replace(config, ngram=2, min_match=2, automaton_nodes=8)
    for policy in policies:
        drafter = new_drafter(policy, small)
        drafter.observe([1, 2, 3, 1, 2, 3, 1, 2])
        drafter.learn(tokens, ids, probs, tokens)
        tree = drafter.propose(8, 4)
        drafter.judge(len(tree), [0], 1)
    growing = NgramAutomaton(2, 2 * FIRST_NODES)
    growing.append(np.arange(FIRST_NODES))
