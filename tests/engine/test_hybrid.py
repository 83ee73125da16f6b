"""Hybrid drafting: one tree of RACER's nodes and the draft model's chain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.draft.control import StepForecast, Throughput
from app.engine.draft.tree import depth_chances, merge
from app.engine.errors import InvalidRequest
from app.engine.request import SamplingParams, SpeculationParams
from racer.auto import AutoDrafter
from racer.budget import CostCurve
from racer.tree import DraftTree, Source
from tests.engine.drafting import CHEAP, DEAR, DRAFT_SEED, GREEDY, PLAIN, PROMPTS, SEEDED, answer, ask, pair, similar
from tests.engine.test_control import FLAT, Steps
from tests.tiny import loaded

HYBRID = SpeculationParams("hybrid")


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """A tree as the auto policy grows it: in falling order of confidence."""
    n = draw(st.integers(1, 14))
    parents, confidence, depth = [-1], [1.0], [0]
    tokens = [50]
    for node in range(1, n):
        parent = draw(st.integers(0, node - 1))
        taken = {tokens[other] for other in range(1, node) if parents[other] == parent}
        tokens.append(draw(st.sampled_from(sorted(set(range(21)) - taken))))
        parents.append(parent)
        depth.append(depth[parent] + 1)
        confidence.append(min(confidence[-1], confidence[parent]) * draw(st.floats(0.3, 0.99)))
    return DraftTree(
        np.array(tokens, np.int64),
        np.array(parents, np.int32),
        np.array(depth, np.int32),
        np.full(n, Source.COPY_LOGIT, np.uint8),
        np.array(confidence, np.float32),
    )


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """The tokens from the root to each node."""
    found: list[tuple[int, ...]] = []
    for node in range(len(tree)):
        above = found[tree.parents[node]] if node else ()
        found.append((*above, int(tree.tokens[node])))
    return found


@given(trees(), st.lists(st.integers(0, 20), max_size=6), st.lists(st.floats(0.01, 0.99), min_size=6, max_size=6))
def test_a_merged_tree_holds_both_once_and_in_order(own: DraftTree, chain: list[int], chances: list[float]):
    merged = merge(own, chain, chances[: len(chain)])
    tree = merged.tree
    assert merged.own is not None
    ours, both = paths(own), paths(tree)
    drafted = [(50, *chain[: d + 1]) for d in range(len(chain))]
    assert sorted(both) == sorted({*ours, *drafted})
    assert len(set(both)) == len(both)
    assert (tree.parents[1:] < np.arange(1, len(tree))).all()
    assert (np.diff(tree.confidence) <= 0).all()
    assert sorted(place for place in merged.own.tolist() if place >= 0) == list(range(len(own)))
    for node, place in enumerate(merged.own):
        if place >= 0:
            assert ours[place] == both[node]
            assert tree.source[node] == own.source[place]
        else:
            assert tree.source[node] == Source.DRAFT_MODEL
    for d, path in enumerate(drafted):
        assert tree.confidence[both.index(path)] == pytest.approx(np.prod(chances[: d + 1]), rel=1e-4)
    assert all(0 <= chance <= 1 for chance in depth_chances(own))


@given(trees(), st.lists(st.integers(0, 20), max_size=6), st.data())
def test_the_own_tree_is_judged_by_what_was_verified_of_it(own: DraftTree, chain: list[int], data: st.DataObject):
    merged = merge(own, chain, [0.8] * len(chain))
    merged = merged.first(data.draw(st.integers(1, len(merged.tree))))
    path = [0]  # any walk down the verified tree
    while children := np.flatnonzero(merged.tree.parents == path[-1]).tolist():
        if data.draw(st.booleans()):
            break
        path.append(data.draw(st.sampled_from(children)))
    tokens = [*merged.tree.tokens[path[1:]].tolist(), 99]
    verified, kept, truth = merged.own_share(path, tokens)
    assert 1 <= verified <= len(own)
    assert merged.own is not None
    assert set(range(verified)) <= set(merged.own.tolist())
    assert kept[0] == 0
    assert all(place < verified for place in kept)
    assert own.tokens[kept].tolist() == merged.tree.tokens[path[: len(kept)]].tolist()
    assert truth == tokens[len(kept) - 1]
    child = own.child_with(kept[-1], truth)
    assert child == -1 or child >= verified


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", ["random", "similar", "itself"])
def test_ids_equal_plain_for_every_budget_alone_and_in_company(draft: str, sampling: SamplingParams):
    small = {"random": lambda: loaded("llama", DRAFT_SEED, frozenset()), "similar": similar, "itself": lambda: None}[draft]()
    with pair(small) as engine:
        plain = [answer(engine, prompt, sampling, 70, PLAIN) for prompt in PROMPTS]
        for budget in (1, 2, 8, 24):
            for fixed in (True, False):
                speculation = replace(HYBRID, max_nodes=budget, fixed_budget=fixed)
                together = engine.generate_all([ask(engine, prompt, sampling, 70, speculation) for prompt in PROMPTS])
                for ours, oracle in zip(together, plain, strict=True):
                    assert ours.token_ids == oracle.token_ids
                    assert ours.finished.stats.num_draft_tokens <= (budget - 1) * ours.finished.stats.num_steps


def test_both_sources_are_accepted_and_counted():
    with pair(similar()) as engine:
        done = [answer(engine, prompt, GREEDY, 150, HYBRID).finished.stats for prompt in PROMPTS]
        sources = {name: sum(stats.tokens_by_source[name] for stats in done) for name in done[0].tokens_by_source}
        assert sources["draft_model"] > 0
        assert sources["retrieval"] + sources["copy_logit"] > 0
        for stats in done:
            assert sum(stats.tokens_by_source.values()) == stats.emitted
            assert stats.emitted == stats.num_accepted_tokens + stats.num_steps + 1


def test_a_sure_racer_or_a_dear_draft_means_that_the_draft_model_is_not_asked():
    with pair(cost_curve=FLAT, draft_curve=DEAR) as engine:
        assert engine._decoder.draft_model is not None
        before = engine._decoder.draft_model.rows_read
        stats = answer(engine, PROMPTS[1], GREEDY, 100, HYBRID).finished.stats
        assert engine._decoder.draft_model.rows_read - before == len(engine.codec.encode(PROMPTS[1]))  # the prompt alone
        assert stats.tokens_by_source["draft_model"] == 0
    curve = ((1, 0.02), (24, 0.02))
    with pair(cost_curve=curve, draft_curve=((1, 0.004), (16, 0.004))) as engine:  # its text soon repeats itself
        assert engine._decoder.draft_model is not None
        answer(engine, PROMPTS[1], GREEDY, 100, HYBRID)
        before = engine._decoder.draft_model.rows_read
        answer(engine, PROMPTS[1], GREEDY, 200, HYBRID)
        asked = engine._decoder.draft_model.rows_read - before
        before = engine._decoder.draft_model.rows_read
        answer(engine, PROMPTS[1], GREEDY, 200, SpeculationParams("draft_model"))
        assert asked < 0.7 * (engine._decoder.draft_model.rows_read - before)


def test_the_learnt_acceptance_counts_only_racers_own_nodes(monkeypatch: pytest.MonkeyPatch):
    judged: list[tuple[int, int]] = []
    judge = AutoDrafter.judge

    def watch(self: AutoDrafter, verified: int, path, truth: int) -> None:
        judged.append((verified, self._proposed))
        assert verified <= max(1, self._proposed)
        assert all(node < verified for node in path)
        judge(self, verified, path, truth)

    monkeypatch.setattr(AutoDrafter, "judge", watch)
    with pair(similar(), draft_curve=CHEAP) as engine:
        answer(engine, PROMPTS[0], GREEDY, 120, HYBRID)
    assert judged


def test_records_of_steps_name_the_draft_model():
    steps = Steps()
    with pair(observer=steps) as engine:
        stats = answer(engine, PROMPTS[3], GREEDY, 60, replace(HYBRID, fixed_budget=True)).finished.stats
    assert sum(record.emitted_by_source["draft_model"] for record in steps.records) == stats.tokens_by_source["draft_model"]
    assert all(record.nodes <= 24 for record in steps.records)


def test_hybrid_takes_one_policy_alone():
    with pair() as engine, pytest.raises(InvalidRequest, match="auto alone") as caught:
        answer(engine, "z", GREEDY, 4, replace(HYBRID, policy="paper"))
    assert caught.value.param == "speculative.policy"


def test_a_token_must_earn_what_its_time_brings_elsewhere():
    target, draft = CostCurve([1, 64], [0.1, 0.1]), CostCurve([1, 16], [0.05, 0.05])
    poor = StepForecast(target, draft, rows=1, tokens=1.0)
    rich = StepForecast(target, draft, rows=1, tokens=1.0, rate=25.0)
    assert poor.pays([], 1.0, 0.7, most=1, company=1, grows=True)  # 0.7 tokens for half the time of a step of one
    assert not rich.pays([], 1.0, 0.7, most=1, company=1, grows=True)  # half a step brings 1.25 tokens by now
    lately = Throughput()
    assert lately.rate(2) == 0.0
    lately.add(2, 6, 0.1)
    assert lately.rate(2) == pytest.approx(60.0) and lately.rate(1) == pytest.approx(30.0)
