"""The RACER drafter: merge, policies, independence of sessions, the same results without compilation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer.auto import AutoDrafter
from racer.copy_logits import CopyLogitTable
from racer.drafter import Drafter, NullDrafter, Policy, RacerConfig
from racer.factory import new_drafter, warm_up
from racer.paper import RacerDrafter
from racer.tree import DraftTree, Source

from .audit import check_tree, paths_of
from .replay import digest


def same(left: DraftTree, right: DraftTree) -> bool:
    names = ("tokens", "parents", "depth", "source", "confidence")
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in names)


@settings(max_examples=100)
@given(
    st.sampled_from(["paper", "retrieval", "copy_logit", "half", "fallback"]),
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.integers(-1, 90),
    st.integers(-1, 20),
    st.integers(0, 2**32 - 1),
)
def test_any_tree_keeps_the_contract(policy: Policy, tokens: list[int], budget: int, max_depth: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    drafter = RacerDrafter(RacerConfig(ngram=4, automaton_nodes=40, breadth=3, policy=policy))
    drafter.observe(tokens)
    drafter.learn(rng.integers(0, 6, 5), rng.integers(0, 6, (5, 3)), rng.random((5, 3)))
    check_tree(drafter.propose(budget, max_depth), tokens[-1], budget, max_depth)


def test_the_union_counts_unique_nodes() -> None:
    """Copy-logit nodes that retrieval has found already take no slot, and are searched on below."""
    drafter = RacerDrafter(RacerConfig(breadth=2))
    drafter.observe([1, 2, 3, 1, 2])
    ids = np.array([[3, 9], [1, 8], [7, 6]])
    drafter.learn(np.array([2, 3, 9]), ids, np.full(ids.shape, 0.5))
    tree = drafter.propose(7, 2)
    sources = dict(zip(paths_of(tree), tree.source.tolist(), strict=True))
    assert sources == {
        (): Source.TARGET,
        (3,): Source.RETRIEVAL,
        (3, 1): Source.RETRIEVAL,
        (9,): Source.COPY_LOGIT,
        (3, 8): Source.COPY_LOGIT,
        (9, 7): Source.COPY_LOGIT,
    }
    assert len(drafter.propose(5, 2)) == 5


def sources_of(policy: Policy, text: np.ndarray | list[int], budget: int) -> list[int]:
    """Nodes from retrieval and from copy-logit, where every token has a row of eight that retrieval does not know."""
    drafter = RacerDrafter(RacerConfig(policy=policy))
    drafter.observe(text)
    tokens = np.arange(400)
    drafter.learn(tokens, 100 + np.tile(np.arange(8), (400, 1)), np.full((400, 8), 0.1))
    counted: list[int] = np.bincount(drafter.propose(budget, 64).source, minlength=2)[:2].tolist()
    return counted


def test_retrieval_may_take_all_slots_and_half_leaves_room() -> None:
    rng = np.random.default_rng(1)
    text = np.concatenate([[1, 2, *rng.integers(3, 99, 20)] for _ in range(8)] + [[1, 2]])  # eight ways to go on
    assert sources_of("paper", text, 21) == [20, 0]
    assert sources_of("half", text, 21) == [10, 10]
    assert sources_of("fallback", text, 21) == [20, 0]
    assert sources_of("half", text, 2) == [0, 1]


def test_one_match_leaves_most_of_the_budget_to_copy_logit() -> None:
    """A bigram seen once is eight tokens to copy, whatever the budget; under half nobody fills what the other leaves over."""
    text = [*range(300, 400), 299, 350, 351]
    assert sources_of("paper", text, 64) == [8, 55]
    assert sources_of("half", text, 64) == [8, 32]
    assert sources_of("last_logit", text, 64)[0] == 8
    assert sources_of("fallback", text, 64) == [8, 0]
    assert sources_of("retrieval", text, 64) == [8, 0]


def test_fallback_is_for_steps_without_any_match() -> None:
    drafter = RacerDrafter(RacerConfig(policy="fallback", breadth=2))
    drafter.observe([1, 2, 3, 1, 2])
    drafter.learn(np.array([2, 3]), np.array([[7, 8], [7, 8]]), np.full((2, 2), 0.4))
    assert paths_of(drafter.propose(8, 1))[1:] == [(3,)]  # one token retrieved is enough
    drafter.observe([3, 2])
    assert paths_of(drafter.propose(8, 1))[1:] == [(7,), (8,)]


def test_last_logit_drafts_from_the_row_that_was_learnt_last() -> None:
    """It stands for the root and for all that may follow it; the rows of other tokens are not asked."""
    drafter = RacerDrafter(RacerConfig(policy="last_logit", breadth=2))
    drafter.observe([5])
    ids = np.array([[1, 2], [3, 4]])
    drafter.learn(np.array([5, 9]), ids, np.full(ids.shape, 0.4))
    assert paths_of(drafter.propose(10, 2))[1:] == [(3,), (4,), (3, 3), (3, 4), (4, 3)]


def test_no_budget_or_depth_gives_the_root_alone() -> None:
    drafter = RacerDrafter()
    drafter.observe([1, 2, 3, 1, 2])
    for budget, max_depth in ((1, 10), (0, 10), (10, 0)):
        assert drafter.propose(budget, max_depth).tokens.tolist() == [2]


def test_proposing_changes_nothing_and_the_tree_is_a_copy() -> None:
    drafter = RacerDrafter()
    drafter.observe([1, 2, 3, 4, 1, 2])
    tree = drafter.propose(64, 64)
    tokens = tree.tokens.copy()
    assert same(tree, drafter.propose(64, 64))
    drafter.observe([9, 9, 9])
    drafter.propose(64, 64)
    assert np.array_equal(tree.tokens, tokens)


def test_two_drafters_share_nothing_but_the_base() -> None:
    base = CopyLogitTable()
    one, two, alone = RacerDrafter(base=base), RacerDrafter(base=base), RacerDrafter()
    one.observe([1, 2, 3, 4, 5, 1, 2])
    two.observe([1, 2])
    alone.observe([1, 2])
    assert same(two.propose(64, 64), alone.propose(64, 64))
    one.learn(np.array([2]), np.array([[7]]), np.array([[0.5]]))
    assert two.propose(64, 64).tokens.tolist() == [2, 7]
    assert len(alone.propose(64, 64)) == 1


def test_accepts_sequences_any_integer_type_and_read_only_arrays() -> None:
    trees = []
    frozen = np.array([1, 2, 3, 1, 2], np.int64)
    frozen.flags.writeable = False
    for tokens in ([1, 2, 3, 1, 2], (1, 2, 3, 1, 2), np.array([1, 2, 3, 1, 2], np.int32), frozen):
        drafter = RacerDrafter()
        drafter.observe([])
        drafter.observe(tokens)
        trees.append(drafter.propose(16, 16))
    assert all(same(trees[0], tree) for tree in trees)


@pytest.mark.parametrize("drafter", [RacerDrafter(), NullDrafter()])
def test_nothing_to_propose_before_the_first_token(drafter: Drafter) -> None:
    with pytest.raises(ValueError, match="observe"):
        drafter.propose(8, 8)


def test_the_null_drafter_proposes_the_root() -> None:
    drafter: Drafter = NullDrafter()
    drafter.observe(np.array([4, 5]))
    drafter.observe([])
    drafter.learn(np.array([5]), np.array([[1]]), np.array([[1.0]]))
    assert drafter.propose(64, 64).tokens.tolist() == [5]


@pytest.mark.parametrize(
    "bad",
    [{"policy": "best"}, {"ngram": 63}, {"min_match": 0}, {"min_match": 11}, {"breadth": 0}, {"breadth": 11}, {"context": 0}],
)
def test_settings_out_of_range_are_refused(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        RacerConfig(**bad)


@pytest.mark.parametrize(
    ("policy", "given", "nodes"),
    [
        ("paper", {}, 10_000),
        ("half", {"context": 50}, 10_000),
        ("auto", {"context": 5_000}, 50_000),
        ("auto", {"context": 5_000, "ngram": 4, "min_match": 2}, 20_000),
        ("auto", {"context": 3}, 56),  # the least that works
        ("auto", {"context": 5_000, "automaton_nodes": 100}, 100),
        ("paper", {"automaton_nodes": 100}, 100),
    ],
)
def test_auto_has_room_for_the_context_and_a_number_given_wins(policy: Policy, given: dict, nodes: int) -> None:
    config = RacerConfig(policy="pld", **given)
    drafter = new_drafter(policy, config)
    assert isinstance(drafter, RacerDrafter | AutoDrafter)
    assert drafter.automaton.capacity == nodes


@pytest.mark.parametrize(
    ("policy", "back", "found"), [("auto", 5_500, 8), ("auto", 8_000, 8), ("paper", 500, 8), ("paper", 2_000, 0)]
)
def test_how_far_back_a_copy_is_found(policy: Policy, back: int, found: int) -> None:
    text = np.random.default_rng(0).permutation(9_000)
    drafter = new_drafter(policy, RacerConfig(context=9_100))
    drafter.observe(text)
    drafter.observe([20_000, *text[9_000 - back :][:2]])
    right = text[9_000 - back + 2 :][:found].tolist()
    assert drafter.propose(9, 8).tokens[1:].tolist() == right
    assert (drafter.state.evictions > 0) == (policy == "paper")


@pytest.mark.parametrize(("ngram", "least"), [(10, 56), (4, 11)])
def test_an_automaton_too_small_for_one_token_is_refused(ngram: int, least: int) -> None:
    """The least that is accepted is the least that works: the oldest node is never one in use."""
    with pytest.raises(ValueError, match=f"automaton_nodes must be at least {least} "):
        RacerConfig(ngram=ngram, automaton_nodes=least - 1)
    drafter = RacerDrafter(RacerConfig(ngram=ngram, automaton_nodes=least))
    drafter.observe(np.arange(3 * ngram))
    assert drafter.state.automaton_nodes == least


def test_plain_python_gives_the_same() -> None:
    warm_up(RacerConfig())
    root = Path(__file__).parents[2]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-W", "error", "-m", "tests.racer.replay"]
    plain = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    assert plain.stdout.strip() == digest()
