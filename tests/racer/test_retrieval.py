"""The retrieval tree: exact order, union without duplicates, where a copy ends, newest tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer.drafter import RacerConfig
from racer.paper import RacerDrafter
from racer.tree import Source

from .audit import check_tree, paths_of
from .naive import NaiveTrie


def drafter_of(n: int = 10, nodes: int = 10_000, min_match: int = 2) -> RacerDrafter:
    return RacerDrafter(RacerConfig(ngram=n, automaton_nodes=nodes, min_match=min_match, policy="retrieval"))


@settings(max_examples=150)
@given(
    st.integers(2, 5),
    st.integers(1, 60),
    st.integers(1, 2),
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.integers(1, 40),
    st.integers(1, 4),
)
def test_order_equals_a_full_enumeration(
    n: int, spare: int, min_match: int, tokens: list[int], budget: int, max_depth: int
) -> None:
    capacity = n * (n + 1) // 2 + spare
    drafter, naive = drafter_of(n, capacity, min_match), NaiveTrie(n, capacity)
    drafter.observe(tokens)
    for token in tokens:
        naive.append(token)
    tree = drafter.propose(budget, max_depth)
    check_tree(tree, tokens[-1], budget, max_depth)
    assert paths_of(tree)[1:] == naive.ranked_paths(max_depth, min_match)[: budget - 1]
    assert (tree.source[1:] == Source.RETRIEVAL).all()


@pytest.mark.parametrize(("n", "capacity", "alphabet"), [(3, 60, 2), (4, 150, 3), (5, 300, 4), (3, 120, 12), (4, 600, 9)])
def test_order_on_longer_texts_with_eviction(n: int, capacity: int, alphabet: int) -> None:
    rng = np.random.default_rng(n * capacity)
    drafter, naive = drafter_of(n, capacity), NaiveTrie(n, capacity)
    for _ in range(8):
        for token in rng.integers(0, alphabet, 60).tolist():
            drafter.observe([token])
            naive.append(token)
        ranked = naive.ranked_paths(3, 2)
        for budget in (2, 3, 6, 16, 64):
            assert paths_of(drafter.propose(budget, 3))[1:] == ranked[: budget - 1]


def test_a_small_budget_among_many_children_takes_the_best() -> None:
    """More candidates than the heap holds: it is cut, and the result stays exact."""
    drafter, naive = drafter_of(3, 5_000), NaiveTrie(3, 5_000)
    text: list[int] = []
    for successor in np.random.default_rng(3).integers(10, 150, 400).tolist():
        text += [1, 2, successor]
    text += [1, 2]
    drafter.observe(text)
    for token in text:
        naive.append(token)
    for budget in (2, 3, 5, 20, 64):
        assert paths_of(drafter.propose(budget, 1))[1:] == naive.ranked_paths(1, 2)[: budget - 1]


@pytest.mark.parametrize(("n", "match", "length"), [(10, 2, 8), (10, 3, 8), (10, 9, 8), (4, 3, 2), (4, 2, 2)])
def test_a_copy_ends_where_the_stored_ngram_ends(n: int, match: int, length: int) -> None:
    """The shortest border that counts, two tokens, has the longest n-grams below it: n - 2 tokens."""
    passage = np.random.default_rng(0).permutation(1000)[:300]
    drafter = drafter_of(n)
    drafter.observe(passage)
    drafter.observe([2000, 2001, *passage[100 : 100 + match]])
    tree = drafter.propose(64, 64)
    assert tree.tokens[1:].tolist() == passage[100 + match : 100 + match + length].tolist()
    assert tree.parents.tolist() == list(range(-1, length))


def test_the_newest_tokens_are_retrievable_at_once() -> None:
    drafter = drafter_of()
    drafter.observe([1, 2, 3])
    drafter.observe([1])
    drafter.observe([2])
    assert drafter.propose(64, 1).tokens.tolist() == [2, 3]
    assert drafter.propose(8, 64).tokens.tolist() == [2, 3, 1, 2]  # up to the end of the text, and not round again


def test_one_token_is_no_match() -> None:
    drafter = drafter_of()
    drafter.observe([1, 2, 3, 4, 1])
    assert len(drafter.propose(64, 64)) == 1
    drafter.observe([2])
    assert drafter.propose(3, 64).tokens.tolist() == [2, 3, 4]


def test_an_unseen_token_ends_the_match() -> None:
    drafter = drafter_of()
    drafter.observe([1, 2, 3, 1, 2, 99])
    assert len(drafter.propose(64, 64)) == 1


def test_frequent_continuations_come_first_and_are_more_confident() -> None:
    drafter = drafter_of()
    drafter.observe([7, 8, 1, 7, 8, 2, 7, 8, 2, 7, 8, 2, 7, 8, 1, 7, 8])
    tree = drafter.propose(64, 1)
    assert tree.tokens.tolist() == [8, 2, 1]
    assert tree.confidence.tolist() == [1.0, 0.5, np.float32(1 / 3)]
