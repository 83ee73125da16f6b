"""Prompt lookup: the chain transformers would draft."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from racer.pld import PldDrafter
from racer.tree import Source

contexts = st.lists(st.integers(0, 4), min_size=1, max_size=40)


@given(contexts, st.integers(1, 4), st.integers(1, 12))
def test_drafts_what_transformers_drafts(context: list[int], ngram: int, copy: int) -> None:
    drafter = PldDrafter(ngram, copy)
    drafter.observe(context)
    tree = drafter.propose(100, 100)
    theirs = PromptLookupCandidateGenerator(num_output_tokens=copy, max_matching_ngram_size=ngram, max_length=10_000)
    ids, _ = theirs.get_candidates(torch.tensor([context]))
    assert tree.tokens[1:].tolist() == ids[0, len(context) :].tolist()


@given(contexts, st.integers(1, 8), st.integers(0, 8))
def test_trees_are_chains_within_the_limits(context: list[int], budget: int, max_depth: int) -> None:
    drafter = PldDrafter()
    drafter.observe(context)
    tree = drafter.propose(budget, max_depth)
    n = len(tree)
    assert 1 <= n <= min(budget, max_depth + 1, 11)
    assert tree.tokens[0] == context[-1]
    assert tree.parents.tolist() == list(range(-1, n - 1))
    assert tree.depth.tolist() == list(range(n))
    assert tree.source.tolist() == [Source.TARGET] + [Source.RETRIEVAL] * (n - 1)
    assert ((tree.confidence > 0) & (tree.confidence <= 1)).all()


@given(contexts, st.integers(0, 40))
def test_observing_in_parts_changes_nothing(context: list[int], cut: int) -> None:
    whole, parts = PldDrafter(), PldDrafter()
    whole.observe(context)
    parts.observe(context[:cut])
    parts.observe(context[cut:])
    assert whole.propose(11, 20).tokens.tolist() == parts.propose(11, 20).tokens.tolist()


def test_the_first_occurrence_of_the_longest_suffix_is_copied() -> None:
    drafter = PldDrafter()
    drafter.observe([1, 2, 3, 4, 9, 3, 5, 1, 2, 3, 6, 1, 2, 3])
    assert drafter.propose(4, 20).tokens.tolist() == [3, 4, 9, 3]


def test_a_long_context_is_kept_whole() -> None:
    drafter = PldDrafter()
    tokens = np.random.default_rng(0).permutation(5000)
    for start in range(0, 5000, 700):
        drafter.observe(tokens[start : start + 700])
    drafter.observe(tokens[100:103])
    assert drafter.propose(11, 20).tokens[1:].tolist() == tokens[103:113].tolist()
    assert not drafter.learns
    assert drafter.nbytes >= 5003 * 8


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="observe"):
        PldDrafter().propose(8, 8)
    with pytest.raises(ValueError, match="at least 1"):
        PldDrafter(max_ngram=0)
    with pytest.raises(ValueError, match="token ids"):
        PldDrafter().observe([-1])
