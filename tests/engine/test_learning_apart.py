"""What an engine learns while it decodes, put aside and brought back."""

from __future__ import annotations

import numpy as np
import pytest

from app.engine.engine import Engine
from app.engine.instruments import Learning
from app.engine.request import SpeculationParams
from tests.engine.drafting import CHEAP, FLAT, GREEDY, answer, pair, similar

HYBRID = SpeculationParams("hybrid")
PROMPT = "abcabcabcabcabc"


def state(learning: Learning) -> list[np.ndarray]:
    """Everything that learning changes, as numbers."""
    assert learning.costs and learning.draft_acceptance and learning.draft_curve
    return [
        learning.shared.acceptance.counts.copy(),
        learning.shared_csd.acceptance.counts.copy(),
        learning.draft_acceptance._all.copy(),
        learning.costs.curve.seconds.copy(),
        learning.draft_curve.seconds.copy(),
        np.array([learning.costs.curve._speed, learning.costs.plain.ratio, learning.throughput.rate(1)]),
    ]


def same(one: Learning, before: list[np.ndarray]) -> bool:
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(state(one), before, strict=True))


def priced(engine: Engine) -> None:
    """Let steps correct the costs, as they do where no curve is given."""
    assert engine._decoder.costs is not None and engine._decoder.draft_model is not None
    engine._decoder.costs.refine = True
    engine._decoder.draft_model.refine = True


def test_what_a_request_teaches_goes_where_it_was_told_to_and_nowhere_else():
    with pair(similar(), cost_curve=FLAT, draft_curve=CHEAP) as engine:
        priced(engine)
        own, start = engine.instruments.learning, state(engine.instruments.learning)
        other = own.fresh()
        with engine.instruments.using(other):
            answer(engine, PROMPT, GREEDY, 40, HYBRID)
        assert same(own, start)
        learnt = [not np.array_equal(mine, theirs) for mine, theirs in zip(state(other), start, strict=True)]
        assert learnt == [True, False, True, True, True, True]  # csd taught nothing
        answer(engine, PROMPT, GREEDY, 40, HYBRID)
        assert not same(own, start)


def test_fresh_is_as_at_the_start_and_has_the_models_prior_rows():
    with pair(similar(), prior_rows=20) as engine:
        priced(engine)
        assert engine.instruments.settle(60.0)
        start = state(engine.instruments.learning.fresh())
        answer(engine, PROMPT, GREEDY, 40, HYBRID)
        fresh = engine.instruments.learning.fresh()
        assert same(fresh, start)
        assert fresh.shared.prior_ids is engine.instruments.learning.shared.prior_ids
        assert fresh.shared_csd.prior_probs is engine.instruments.learning.shared.prior_probs


def test_the_engines_own_comes_back_after_an_error():
    with pair() as engine:
        own = engine.instruments.learning
        with pytest.raises(RuntimeError), engine.instruments.using(own.fresh()):
            raise RuntimeError
        assert engine.instruments.learning == own
