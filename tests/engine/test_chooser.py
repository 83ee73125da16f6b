"""What the walk hears of a request: rows as its settings change them, what may be learnt from it, and the likeliest of ties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from app.engine.chooser import Chooser
from app.engine.request import GenerationRequest, SamplingParams, StopParams
from app.engine.sampling.logits import successors
from app.engine.sampling.logits_processor import LogitsProcessor
from csd.gate import CsdRule, Rule, StaticRule
from csd.memory import CorrectionMemory
from csd.verify import Walk, walk_csd
from racer.tree import DraftTree, Source
from tests.engine.hand import lone_session
from tests.tiny import loaded

VOCABULARY = 16
CODEC = loaded().codec
DRAFT, TARGET, OTHER = 7, 5, 3
TREE = DraftTree(
    np.array([9, DRAFT], np.int64),
    np.array([-1, 0], np.int32),
    np.array([0, 1], np.int32),
    np.array([Source.TARGET, Source.DRAFT_MODEL], np.uint8),
    np.ones(2, np.float32),
)
MEMORY = CorrectionMemory()
for token in (TARGET, OTHER):
    MEMORY.record(DRAFT, token, 9)
RULES: list[Rule] = [CsdRule(), CsdRule(use_gate=False), CsdRule(use_memory=False), StaticRule(0.01)]
GREEDY = SamplingParams(0.0)


class Only:
    """A grammar that allows some tokens, the same at every place."""

    def __init__(self, *tokens: int) -> None:
        self.mask = np.isin(np.arange(VOCABULARY), tokens)

    def matcher(self) -> Only:
        return self

    def allowed(self, _path: object) -> np.ndarray:
        return self.mask


def chooser_for(
    sampling: SamplingParams, row: dict[int, float], *, grammar: Any = None, min_tokens: int = 0, drawn: tuple[int, ...] = ()
) -> Chooser:
    """row: raw logits after the root, -20 for all others."""
    request = GenerationRequest((11, 12), sampling, StopParams(9, min_tokens=min_tokens), grammar=grammar)
    session = lone_session(request, CODEC, 2, 9)
    if LogitsProcessor.needed(request):
        session.processor = LogitsProcessor(request, frozenset({1}), VOCABULARY, torch.device("cpu"))
    logits = torch.full((2, VOCABULARY), -20.0)
    for token, value in row.items():
        logits[0, token] = value
    return Chooser(session, TREE, logits, successors(logits, 2, probabilities=False).ids[:, 0].tolist(), drawn)


def walk(chooser: Chooser, rule: Rule) -> Walk:
    return walk_csd(TREE, chooser, chooser.read, rule, MEMORY, chooser.protects, teaches=chooser.teaches)


@pytest.mark.parametrize("rule", RULES, ids=["both", "ocm", "scg", "static"])
@pytest.mark.parametrize(
    ("sampling", "row"),
    [
        (SamplingParams(0.0, logit_bias=((DRAFT, -50.0),)), {DRAFT: 12.0, TARGET: 3.0}),
        (SamplingParams(0.0, logit_bias=((TARGET, 50.0),)), {DRAFT: 12.0, TARGET: 3.0}),
        (SamplingParams(0.0, logit_bias=((DRAFT, -100.0),)), {DRAFT: 12.0, TARGET: 3.0}),
        (SamplingParams(0.0, repetition_penalty=4.0), {DRAFT: 12.0, TARGET: 8.5}),  # DRAFT stands in the answer
        (SamplingParams(0.0, frequency_penalty=2.0, presence_penalty=2.0), {DRAFT: 4.0, TARGET: 5.0}),
        (SamplingParams(1.0, top_k=1), {DRAFT: 4.0, TARGET: 5.0}),
        (SamplingParams(1.0, top_p=0.7), {DRAFT: 4.0, TARGET: 5.0}),
        (SamplingParams(1.0, min_p=0.5), {DRAFT: 4.0, TARGET: 5.0}),
    ],
)
def test_no_rescue_brings_back_what_a_request_keeps_out(rule: Rule, sampling: SamplingParams, row: dict[int, float]):
    chooser = chooser_for(sampling, row)
    if chooser.session.processor is not None:
        chooser.session.processor.accept([DRAFT, DRAFT])
    assert walk(chooser, rule).tokens == (TARGET,)
    plain = chooser_for(GREEDY, row | {TARGET: row[DRAFT] + 0.4})
    assert walk(plain, rule).tokens[0] == DRAFT  # without these settings it comes


@pytest.mark.parametrize("rule", RULES, ids=["both", "ocm", "scg", "static"])
def test_no_rescue_leaves_a_grammar(rule: Rule):
    row = {DRAFT: 5.0, TARGET: 5.2}
    assert walk(chooser_for(GREEDY, row, grammar=Only(TARGET, OTHER)), rule).tokens == (TARGET,)
    assert walk(chooser_for(GREEDY, row, grammar=Only(TARGET, DRAFT)), rule).tokens[0] == DRAFT


def test_two_rows_are_read_where_a_request_changes_the_first_and_one_where_not():
    row = {DRAFT: 4.0, TARGET: 5.0, OTHER: 3.0}

    def read(sampling: SamplingParams, **extra: Any) -> list[tuple[list[float], float]]:
        chooser = chooser_for(sampling, row, **extra)
        chooser(0, 0)
        return [(list(reading.drafts), reading.highest) for reading in chooser.read(0, [DRAFT, OTHER])]

    raw = ([4.0, 3.0], 5.0)
    assert read(GREEDY) == read(SamplingParams(0.7, seed=1)) == [raw]
    assert read(SamplingParams(0.0, top_k=1)) == [raw]  # greedy decoding draws from nothing
    assert read(SamplingParams(0.0, logit_bias=((DRAFT, -2.0), (OTHER, 6.0)))) == [raw, ([2.0, 9.0], 9.0)]
    assert read(SamplingParams(0.7, top_k=2)) == [raw, ([4.0, -math.inf], 5.0)]
    assert read(SamplingParams(0.7, top_k=2, logit_bias=((OTHER, 6.0),))) == [raw, ([-math.inf, 9.0], 9.0)]
    assert read(GREEDY, grammar=Only(OTHER)) == [raw, ([-math.inf, 3.0], 3.0)]
    assert read(GREEDY, min_tokens=1) == [raw, raw]  # an end token is kept out; both are as they were


def test_each_node_has_a_row_of_its_own():
    chooser = chooser_for(GREEDY, {DRAFT: 9.0})
    chooser.logits[1, [OTHER, DRAFT]] = torch.tensor([2.0, 1.0])
    chooser.greedy[1] = OTHER
    assert [chooser(0, 0), chooser(1, 1)] == [DRAFT, OTHER]
    assert chooser.read(1, [DRAFT]) == [([1.0], 2.0)]
    assert chooser.teaches(1, 1, OTHER) and not chooser.teaches(1, 1, DRAFT)


def test_what_is_sampled_is_compared_with_the_likeliest():
    row = {OTHER: 10.0, TARGET: 0.0, DRAFT: -4.0}
    seed = next(seed for seed in range(10**6) if chooser_for(SamplingParams(3.0, seed=seed), row)(0, 0) == TARGET)
    done = walk(chooser_for(SamplingParams(3.0, seed=seed), row), CsdRule())
    assert (done.tokens, done.nominated, done.refused_by_gate) == ((TARGET,), 1, 1)


@pytest.mark.parametrize(
    ("sampling", "extra", "learns"),
    [
        (GREEDY, {}, True),
        (SamplingParams(0.001, seed=1), {}, True),  # sampled, and the likeliest all the same
        (SamplingParams(0.0, logit_bias=((DRAFT, -3.0),)), {}, False),
        (SamplingParams(0.0, logit_bias=((2, 0.5),)), {}, False),
        (SamplingParams(0.0, presence_penalty=0.5), {}, False),
        (SamplingParams(0.0, frequency_penalty=0.5), {}, False),
        (SamplingParams(0.0, repetition_penalty=1.1), {}, False),
        (GREEDY, {"grammar": Only(TARGET)}, False),
        (GREEDY, {"drawn": (1,)}, False),
        (GREEDY, {"drawn": (2,)}, True),
    ],
)
def test_only_what_both_models_find_likeliest_is_learnt(sampling: SamplingParams, extra: dict[str, Any], learns: bool):
    chooser = chooser_for(sampling, {TARGET: 5.0, DRAFT: 1.0, OTHER: 2.0}, **extra)
    assert walk(chooser, CsdRule(tau=1.0)).divergences == (((DRAFT, TARGET),) if learns else ())


def test_a_sampled_token_that_is_not_the_likeliest_teaches_nothing():
    row = {TARGET: 1.0, DRAFT: 0.9, OTHER: 0.8}
    learnt: dict[int, set[tuple[int, int]]] = {}
    for seed in range(60):
        done = walk(chooser_for(SamplingParams(1.0, seed=seed), row), CsdRule(lambda_=math.inf))
        learnt.setdefault(done.tokens[0], set()).update(done.divergences)
    assert learnt[TARGET] == {(DRAFT, TARGET)} and learnt[OTHER] == set()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ties_fall_by_id(dtype: torch.dtype):
    rows = torch.zeros(5, 500, dtype=dtype)
    rows[1, [400, 30, 77]] = 2.0
    rows[2, [250, 4]], rows[2, 90] = 2.0, 3.0
    rows[3, 499] = 1.0
    rows[4] = torch.arange(500).flip(0).to(dtype)
    rows[4, [0, 1, 2, 3]] = torch.tensor([600.0, 700.0, 600.0, 650.0], dtype=dtype)
    for k in (1, 2, 4):
        found = successors(rows, k, probabilities=True)
        assert found.ids[0].tolist() == list(range(k))  # more tie than are asked for
        assert found.ids[1, :3].tolist() == [30, 77, 400][:k]
        assert found.ids[2, :3].tolist() == [90, 4, 250][:k]
        assert found.ids[3, 0] == 499
        assert found.ids[4].tolist() == [1, 3, 0, 2][:k]
        wanted = torch.softmax(rows, -1).float().gather(1, torch.from_numpy(found.ids))
        assert np.array_equal(found.probabilities, wanted.numpy())
    few = torch.zeros(1, 97, dtype=dtype)  # of few ids topk takes some from the middle of those that tie
    few[0, :5] = -1.0
    assert [successors(few, k, probabilities=False).ids.tolist() for k in (1, 4)] == [[[5]], [[5, 6, 7, 8]]]
    assert successors(rows[:, :1], 1, probabilities=False).ids.tolist() == [[0]] * 5
