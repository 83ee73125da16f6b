"""What ends an answer ends its drafts: no step verifies a node below a token after which nothing can be kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from app.engine.drafting import up_to_end
from app.engine.engine import Engine
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from racer.tree import DraftTree, Source
from tests.engine.drafting import FLAT, PLAIN, pair
from tests.engine.turns import FIRST
from tests.structured import json_engine
from tests.tiny import tiny_engine

ENDS = (5, 11, 17, 23, 40, 41)
PAPER = SpeculationParams("racer", policy="paper", fixed_budget=True)


@contextmanager
def watched(engine: Engine) -> Iterator[list[tuple[int, DraftTree]]]:
    """Emitted tokens so far and the tree of every step."""
    seen: list[tuple[int, DraftTree]] = []
    verify = engine._decoder._verify

    def note_and_verify(drafts: Any) -> Any:
        seen.extend((len(draft.session.answer.tokens), draft.tree) for draft in drafts)
        return verify(drafts)

    engine._decoder._verify = note_and_verify  # type: ignore[assignment, method-assign]
    yield seen
    engine._decoder._verify = verify  # type: ignore[assignment, method-assign]


def below(tree: DraftTree, ends: tuple[int, ...]) -> int:
    return sum(parent > 0 and tree.tokens[parent] in ends for parent in tree.parents)


def standing(tree: DraftTree, ends: tuple[int, ...]) -> list[int]:
    """Depths of the drafted nodes that carry an end."""
    return [int(tree.depth[node]) for node in range(1, len(tree)) if tree.tokens[node] in ends]


@pytest.mark.slow
@pytest.mark.parametrize(
    "speculation",
    [
        PAPER,
        SpeculationParams("racer"),
        SpeculationParams("draft_model", fixed_budget=True),
        SpeculationParams("hybrid", fixed_budget=True),
    ],
    ids=["paper", "auto", "draft_model", "hybrid"],
)
def test_no_step_verifies_what_stands_below_an_end(speculation: SpeculationParams) -> None:
    with pair() as engine, watched(engine) as seen:
        for seed in range(4):
            sampling = SamplingParams(1.0, seed=seed)
            for least in (0, 40):
                stopping = StopParams(60, stop_token_ids=ENDS, min_tokens=least)
                request = GenerationRequest(FIRST, sampling, stopping, speculation)
                seen.clear()
                done = engine.generate(request)
                steps = list(seen)
                assert done.token_ids == engine.generate(replace(request, speculation=PLAIN)).token_ids
                assert len(done.token_ids) >= least
                assert not any(below(tree, ENDS) for _, tree in steps)
                # a node of depth d is token number emitted + d, and min_tokens forbids an end up to that number
                assert not any(emitted + depth <= least for emitted, tree in steps for depth in standing(tree, ENDS))


def test_an_end_itself_is_drafted_as_soon_as_it_may_stand() -> None:
    with pair() as engine, watched(engine) as seen:
        found = []
        for seed in range(8):
            for least in (0, 20):
                stopping = StopParams(60, stop_token_ids=ENDS, min_tokens=least)
                seen.clear()
                engine.generate(GenerationRequest(FIRST, SamplingParams(1.0, seed=seed), stopping, PAPER))
                found += [(least, emitted + depth) for emitted, tree in seen for depth in standing(tree, ENDS)]
        assert {number for least, number in found if least == 20 and number < 24} >= {21}
        assert any(least == 0 and number < 10 for least, number in found)


def test_ignored_ends_end_nothing() -> None:
    """The text goes on behind them, and so do its drafts."""
    eos = 17
    prompt = (20, 21, eos, 22, 23, 24, 20, 21, eos, 22, 23, 24, 20, 21)
    with tiny_engine(eos=frozenset({eos}), cost_curve=FLAT) as engine, watched(engine) as seen:
        # the bias makes the answer go on as the prompt does, so that its matches are there to see
        sampling = SamplingParams(0.0, logit_bias=tuple((token, 5.0) for token in (20, 21, eos, 22, 23, 24)))
        for ignore in (False, True):
            stopping = StopParams(30, ignore_eos=ignore, min_tokens=0 if ignore else 30)
            seen.clear()
            engine.generate(GenerationRequest(prompt, sampling, stopping, PAPER))
            assert any(below(tree, (eos,)) for _, tree in seen) is ignore


def test_a_kept_drafter_goes_on_under_the_ends_of_the_next_request() -> None:
    with tiny_engine(eos=frozenset(), cost_curve=FLAT) as engine, watched(engine) as seen:
        words = FIRST[:8]
        text = words + words
        sampling = SamplingParams(1.0, seed=1, logit_bias=tuple((token, 8.0) for token in words))  # the same words again
        ends = [(), words[:4], words[4:], ()]
        met = []
        for stop_ids in ends:
            stopping = StopParams(20, stop_token_ids=stop_ids, min_tokens=20)
            request = GenerationRequest(text, sampling, stopping, PAPER, conversation="c")
            seen.clear()
            done = engine.generate(request)
            text = (*text, *done.token_ids, *words)
            met.append([any(below(tree, other) for _, tree in seen) for other in ends[1:3]])
        assert met == [[True, True], [False, True], [True, False], [True, True]]


def test_a_chain_that_a_grammar_forces_ends_at_a_stop_token() -> None:
    with json_engine(cost_curve=FLAT) as engine, watched(engine) as seen:
        stop = engine.codec.encode("1")[-1]
        grammar = engine.codec.grammars.json_schema({"enum": ["ababab12ab"]})
        request = GenerationRequest(
            tuple(engine.codec.encode("ab")),
            SamplingParams(0.0),
            StopParams(50, stop_token_ids=(stop,)),
            PAPER,
            grammar=grammar,
        )
        done = engine.generate(request)
        assert done.token_ids[-1] == stop
        forced = [tree for _, tree in seen if (tree.source == Source.GRAMMAR).any()]
        assert any(stop in tree.tokens for tree in forced)
        assert not any(below(tree, (stop,)) for tree in forced)


@pytest.mark.parametrize(
    ("tokens", "kept"), [([1, 2, 3], [1, 2]), ([2, 2], [2]), ([1, 3], [1, 3]), ([], []), ([3, 1, 2], [3, 1, 2])]
)
def test_a_chain_is_cut_behind_its_first_end(tokens: list[int], kept: list[int]) -> None:
    assert up_to_end(tokens, frozenset({2})) == kept
