"""What the sessions of a step verify together: controlled ones beside plain ones and such with a fixed budget."""

from __future__ import annotations

import numpy as np
import pytest

from app.engine.draft.tree import MergedTree
from app.engine.drafting import UNPROVEN, Drafting, Proposal, _forecast
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.engine.session import Session
from app.text.codec import TextCodec
from racer.budget import CostCurve, share_budget
from racer.drafter import NullDrafter
from racer.limits import NO_ENDS, Ends
from racer.tree import DraftTree, Float32Array
from tests.engine.hand import lone_session
from tests.tiny import tokenizer

CURVE = CostCurve([1, 2, 4, 8, 16, 24, 32, 64], [31.2, 32.0, 33.2, 35.0, 39.0, 46.9, 55.0, 92.0])
CHANCES = np.array([1.0, 0.5, 0.3, 0.2, 0.15, 0.12, 0.1, 0.08, 0.07, 0.06, 0.05, 0.045, 0.04, 0.035, 0.03], np.float32)
CODEC = TextCodec(tokenizer(), frozenset())


class Fan(NullDrafter):
    """Proposes siblings with given confidences, and keeps the floor that it was told."""

    def __init__(self, confidence: Float32Array) -> None:
        super().__init__()
        self.confidence = confidence
        self.floor = -1.0

    def propose(self, budget: int, max_depth: int, floor: float = 0.0, ends: Ends = NO_ENDS) -> DraftTree:
        self.floor = floor
        n = len(self.confidence)
        parents, depth = np.zeros(n, np.int32), np.ones(n, np.int32)
        parents[0], depth[0] = -1, 0
        return DraftTree(np.arange(n), parents, depth, np.ones(n, np.uint8), self.confidence).first(budget)


def session(speculation: SpeculationParams, confidence: Float32Array = CHANCES) -> Session:
    budget = 1 if speculation.drafter == "none" else 64
    request = GenerationRequest((3,), SamplingParams(0.0), StopParams(100), speculation)
    made = lone_session(request, CODEC, budget, 100, drafter=Fan(confidence))
    made.answer.tokens.append(3)
    return made


def auto() -> Session:
    return session(SpeculationParams("racer", policy="auto"))


def verified(*beside: Session) -> int:
    """Nodes of a controlled session beside these."""
    return len(Drafting(None).draft([*beside, auto()], CURVE)[-1].tree)


@pytest.mark.parametrize("plain", [0, 1, 7, 15])
def test_plain_sessions_count_with_the_token_they_emit(plain: int):
    beside = [session(SpeculationParams("none")) for _ in range(plain)]
    assert [verified(*beside)] == share_budget([CHANCES], CURVE, plain, float(plain))


def test_a_fixed_tree_counts_with_the_sum_of_its_chances():
    fixed = session(SpeculationParams("racer", policy="auto", fixed_budget=True), np.array([1.0, *[0.9] * 9], np.float32))
    assert [verified(fixed)] == share_budget([CHANCES], CURVE, 10, 1.0 + 9 * 0.9)
    assert verified(fixed) < share_budget([CHANCES], CURVE, 10, 1.0)[0]


def test_a_tree_without_chances_counts_with_what_its_session_emitted_so_far():
    paper = session(SpeculationParams("racer", policy="paper"), np.array([1.0, *[0.9] * 9], np.float32))
    assert [verified(paper)] == share_budget([CHANCES], CURVE, 10, 1.0)
    paper.answer.counts.steps, paper.answer.counts.accepted = 32, 32 * 5
    assert [verified(paper)] == share_budget([CHANCES], CURVE, 10, 1.0 + 5 * 32 / (32 + UNPROVEN))


def test_the_floor_heeds_the_rows_of_fixed_sessions():
    controlled = auto()
    Drafting(None).draft([session(SpeculationParams("racer", policy="paper")), controlled], CURVE)
    assert isinstance(controlled.drafter, Fan)
    assert controlled.drafter.floor == CURVE.floor(2, 64, 63)


def test_the_draft_model_is_asked_beside_what_the_step_verifies_without_it(monkeypatch: pytest.MonkeyPatch):
    """Rows and tokens of plain, fixed and cut trees: what further tokens must earn depends on both."""
    given: list[tuple[int, float]] = []
    monkeypatch.setattr(
        "app.engine.drafting.StepForecast", lambda _target, _draft, rows, tokens, _rate: given.append((rows, tokens))
    )
    paper = session(SpeculationParams("racer", policy="paper"), np.array([1.0, *[0.9] * 9], np.float32))
    paper.answer.counts.steps, paper.answer.counts.accepted = 1, 5
    sessions = [session(SpeculationParams("none")), paper, auto()]
    proposals = [Proposal(made, MergedTree(made.drafter.propose(made.budget, 99))) for made in sessions]
    _forecast(proposals, CURVE, CURVE, 0.0)
    paper_tokens = 1.0 + 5 / (1 + UNPROVEN)
    nodes = share_budget([CHANCES], CURVE, 11, 1.0 + paper_tokens)[0]
    assert nodes < len(CHANCES)
    ((rows, tokens),) = given
    assert rows == 11 + nodes
    assert tokens == pytest.approx(1.0 + paper_tokens + float(CHANCES[:nodes].sum()))
