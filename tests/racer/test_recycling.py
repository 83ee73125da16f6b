"""Token Recycling: the template, and the trees it gives."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer.copy_logits import CopyLogitTable
from racer.recycling import LAYERS, RecyclingDrafter, template
from racer.tree import DraftTree, Source

VOCABULARY = 50


def rows(tokens: np.ndarray, seed: int = 0, k: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.permutation(VOCABULARY)[:k] for _ in tokens]) if tokens.size else np.empty((0, k), np.int64)
    return ids, np.tile(0.5 ** np.arange(1, k + 1, dtype=np.float32), (tokens.size, 1))


def filled(known: np.ndarray, seed: int = 0, base: CopyLogitTable | None = None) -> RecyclingDrafter:
    drafter = RecyclingDrafter(base=base)
    drafter.learn(known, *rows(known, seed))
    drafter.observe([3])
    return drafter


def check(tree: DraftTree, budget: int, max_depth: int) -> None:
    assert 1 <= len(tree) <= max(1, min(budget, 81))
    assert (tree.parents[0], tree.depth[0], tree.source[0]) == (-1, 0, Source.TARGET)
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        assert 0 <= parent < node
        assert tree.depth[node] == tree.depth[parent] + 1 <= max_depth
        assert tree.child_with(parent, int(tree.tokens[node])) == node
        assert tree.source[node] == Source.COPY_LOGIT
        assert 0 < tree.confidence[node] <= 1


def test_the_template_has_the_papers_levels() -> None:
    parents, ranks = template()
    depth = [0]
    for parent in parents[1:]:
        depth.append(depth[parent] + 1)
    assert tuple(Counter(depth)[level] for level in range(1, 7)) == LAYERS
    assert len(parents) == 81
    assert depth == sorted(depth)
    assert (parents[1:] < np.arange(1, 81)).all()
    assert ranks.max() < 8


def test_template_paths_are_closed_and_different() -> None:
    """A path's better-ranked sibling is never left out."""
    parents, ranks = template()
    children = set(zip(parents.tolist(), ranks.tolist(), strict=True))
    assert len(children) == 81
    for parent, rank in zip(parents[1:].tolist(), ranks[1:].tolist(), strict=True):
        assert all((parent, better) in children for better in range(rank))


def test_a_full_table_gives_the_whole_template() -> None:
    tree = filled(np.arange(VOCABULARY)).propose(81, 20)
    check(tree, 81, 20)
    assert tree.parents.tolist() == template()[0].tolist()


@given(
    st.sets(st.integers(0, VOCABULARY - 1)),
    st.integers(0, 100),
    st.integers(0, 8),
    st.integers(0, 5),
)
def test_trees_are_valid_for_any_table(known: set[int], budget: int, max_depth: int, seed: int) -> None:
    check(filled(np.array(sorted(known), np.int64), seed).propose(budget, max_depth), budget, max_depth)


def test_a_smaller_budget_takes_the_first_nodes() -> None:
    drafter = filled(np.arange(VOCABULARY))
    whole = drafter.propose(81, 20)
    for budget in (2, 9, 16, 80):
        part = drafter.propose(budget, 20)
        assert part.tokens.tolist() == whole.tokens[:budget].tolist()


def test_a_token_never_seen_is_a_leaf() -> None:
    assert len(filled(np.array([7])).propose(81, 20)) == 1
    drafter = RecyclingDrafter()
    drafter.learn(np.array([3]), np.arange(10, 18)[None], np.full((1, 8), 0.1, np.float32))
    drafter.observe([3])
    tree = drafter.propose(81, 20)
    assert tree.tokens.tolist() == [3, *range(10, 18)]
    assert tree.depth.max() == 1


def test_rows_shorter_than_the_template_leave_gaps() -> None:
    drafter = RecyclingDrafter()
    known = np.arange(VOCABULARY)
    ids, probs = rows(known)
    ids[:, 2:] = -1
    drafter.learn(known, ids, probs)
    drafter.observe([3])
    tree = drafter.propose(81, 20)
    check(tree, 81, 20)
    assert Counter(tree.parents.tolist())[0] == 2


def test_the_base_layer_is_read_and_written() -> None:
    base = CopyLogitTable(8, 100)
    filled(np.arange(VOCABULARY), base=base)
    cold = RecyclingDrafter(base=base)
    cold.observe([3])
    assert len(cold.propose(81, 20)) == 81


@pytest.mark.parametrize("k", [1, 3, 10])
def test_other_breadths_work(k: int) -> None:
    drafter = RecyclingDrafter(k)
    known = np.arange(VOCABULARY)
    drafter.learn(known, *rows(known, k=k))
    drafter.observe([3])
    tree = drafter.propose(81, 20)
    check(tree, 81, 20)
    assert len(tree) > 6


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="observe"):
        RecyclingDrafter().propose(8, 8)
