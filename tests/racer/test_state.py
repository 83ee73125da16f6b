"""The size that every drafter tells."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from racer.drafter import DrafterState, NullDrafter, Policy, RacerConfig
from racer.factory import new_drafter

CONFIG = RacerConfig(ngram=3, automaton_nodes=20)


@pytest.mark.parametrize("policy", get_args(Policy))
def test_state_grows_with_text_and_rows_and_stays_bounded(policy: Policy) -> None:
    drafter = new_drafter(policy, CONFIG)
    assert drafter.state == DrafterState()
    tokens = np.arange(40)
    drafter.observe(tokens)
    drafter.learn(tokens, np.ones((40, 8), np.int64), np.ones((40, 8), np.float32), tokens)
    nodes, evictions, rows = drafter.state
    if policy in ("pld", "recycling"):
        assert (nodes, evictions) == (0, 0)
    else:
        assert nodes == 20
        assert evictions == 3 * 40 - 3 - 20  # all 1-, 2- and 3-grams of 40 distinct tokens, but those that are left
    assert rows == {"pld": 0, "auto": 80}.get(policy, 40)


def test_plain_decoding_holds_nothing() -> None:
    drafter = NullDrafter()
    drafter.observe([1, 2, 3])
    assert drafter.state == DrafterState()
