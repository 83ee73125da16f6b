"""Nothing is drafted below a token that ends the answer, whoever drafts."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer.drafter import Drafter, NullDrafter, Policy, RacerConfig
from racer.factory import new_drafter
from racer.limits import NO_ENDS, Ends, ends_of
from racer.tree import DraftTree

from .audit import check_tree, paths_of

SMALL = RacerConfig(ngram=4, automaton_nodes=400, breadth=3)
DEPTH = 3


def drafter_of(policy: Policy, text: list[int], seed: int) -> Drafter:
    rng = np.random.default_rng(seed)
    drafter = new_drafter(policy, SMALL)
    drafter.observe(text)
    tokens = np.arange(6)
    ids = np.stack([rng.permutation(6)[:3] for _ in tokens])
    drafter.learn(tokens, ids, np.sort(rng.random((6, 3)).astype(np.float32))[:, ::-1] / 3, rng.permutation(6))
    return drafter


def allowed(path: tuple[int, ...], ends: Ends) -> bool:
    banned = any(token in ends.ids and depth < ends.least_depth for depth, token in enumerate(path, 1))
    return not banned and not any(token in ends.ids for token in path[:-1])


@pytest.mark.parametrize("policy", get_args(Policy))
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=50),
    st.sets(st.integers(0, 7), max_size=3),
    st.integers(0, 4),
    st.integers(0, 2**32 - 1),
)
def test_with_room_for_all_just_what_cannot_be_kept_is_missing(
    policy: Policy, text: list[int], ids: set[int], least_depth: int, seed: int
) -> None:
    drafter, ends = drafter_of(policy, text, seed), ends_of(ids, least_depth)
    whole, cut = drafter.propose(1000, DEPTH), drafter.propose(1000, DEPTH, 0.0, ends)
    check_tree(cut, text[-1], 1000, DEPTH)
    left = [path for path in paths_of(whole) if allowed(path, ends)]
    if policy == "fallback" and len(cut) > 1 and set(whole.source[1:]) != set(cut.source[1:]):
        left = paths_of(cut)  # retrieval found nothing that could be kept, so copy-logit had its turn
    if policy == "pld":  # a chain ends before a token that may not stand
        assert paths_of(cut) == left
    assert sorted(paths_of(cut)) == sorted(left)


@pytest.mark.parametrize("policy", get_args(Policy))
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=50), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_a_small_budget_is_not_spent_below_an_end(policy: Policy, text: list[int], budget: int, seed: int) -> None:
    drafter = drafter_of(policy, text, seed)
    tree = drafter.propose(budget, 20, 0.0, ends_of([2, 4], 2))
    check_tree(tree, text[-1], budget, 20)
    assert all(allowed(path, ends_of([2, 4], 2)) for path in paths_of(tree))


@pytest.mark.parametrize("policy", ["auto", "paper", "copy_logit", "half", "fallback"])
def test_the_slots_go_to_others(policy: Policy) -> None:
    """An end that is likeliest everywhere: without it the budget is filled all the same."""
    drafter = new_drafter(policy, RacerConfig(policy=policy))
    drafter.observe([50, 51])
    tokens = np.arange(60)
    ids = np.stack([np.concatenate([[7], (token + 11 * np.arange(1, 8)) % 60]) for token in tokens])
    drafter.learn(
        tokens, ids, np.tile(np.array([0.5, 0.2, 0.1, 0.05, 0.04, 0.03, 0.02, 0.01], np.float32), (60, 1)), np.roll(tokens, 1)
    )
    whole, cut = drafter.propose(24, 50), drafter.propose(24, 50, 0.0, ends_of([7]))
    assert len(cut) == len(whole) >= 12  # half of the slots at least
    assert below(whole, 7) > 0 == below(cut, 7)
    assert 7 in cut.tokens[1:]  # the end itself may be drafted
    assert 7 not in drafter.propose(24, 1, 0.0, ends_of([7], 2)).tokens  # but not where it may not stand


def below(tree: DraftTree, end: int) -> int:
    return sum(tree.tokens[tree.parents[node]] == end for node in range(1, len(tree)) if tree.parents[node] > 0)


@pytest.mark.parametrize("policy", get_args(Policy))
def test_ends_belong_to_a_proposal_and_the_root_is_no_draft(policy: Policy) -> None:
    drafter = drafter_of(policy, [1, 2, 3, 4, 5, 1, 2, 3, 1, 2], 0)
    before, _, after = (drafter.propose(30, 5, 0.0, ends) for ends in (NO_ENDS, ends_of([3]), NO_ENDS))
    assert before.tokens.tolist() == after.tokens.tolist()
    assert len(drafter.propose(30, 5, 0.0, ends_of([2]))) > 1


def test_plain_decoding_takes_ends_too() -> None:
    drafter: Any = NullDrafter()
    drafter.observe([1])
    assert len(drafter.propose(8, 8, 0.0, ends_of([1]))) == 1


def test_ends_are_sorted_and_single() -> None:
    assert ends_of(frozenset({9, 2, 5}), 3).ids.tolist() == [2, 5, 9]
    assert ends_of([2, 2], 3).least_depth == 3
