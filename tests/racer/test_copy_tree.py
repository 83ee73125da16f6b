"""The copy-logit tree: the breadth rule, leaves without rows, the session layer over the base."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer.copy_logits import CopyLogitTable
from racer.drafter import RacerConfig
from racer.paper import RacerDrafter
from racer.tree import Source

from .audit import check_tree, paths_of
from .naive import Gram


def fresh_rows(k: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of `count` tokens whose successors are all distinct and never met before in the tree."""
    tokens = np.arange(count)
    ids = 1 + tokens[:, None] * k + np.arange(k)
    return tokens, ids.astype(np.int32), np.full(ids.shape, 1 / k, np.float32)


def copy_drafter(k: int = 8, base: CopyLogitTable | None = None) -> RacerDrafter:
    drafter = RacerDrafter(RacerConfig(breadth=k, policy="copy_logit"), base)
    drafter.observe([0])
    return drafter


@pytest.mark.parametrize(
    ("k", "budget", "layers"), [(8, 64, [1, 8, 19, 24, 12]), (4, 21, [1, 4, 8, 8]), (8, 9, [1, 8]), (1, 5, [1, 1, 1, 1, 1])]
)
def test_layer_sizes(k: int, budget: int, layers: list[int]) -> None:
    drafter = copy_drafter(k)
    drafter.learn(*fresh_rows(k, 2_000))
    tree = drafter.propose(budget, 64)
    assert np.bincount(tree.depth).tolist() == layers
    assert (tree.source[1:] == Source.COPY_LOGIT).all()


def naive_paths(rows: dict[int, list[int]], k: int, budget: int, max_depth: int) -> list[Gram]:
    """Eq. 3 by a queue of (path, last token, breadth)."""
    paths: list[Gram] = [()]
    queue: list[tuple[Gram, int, int]] = [((), 0, k)]
    while queue:
        path, token, breadth = queue.pop(0)
        if len(path) == max_depth:
            continue
        for rank, successor in enumerate(rows.get(token, [])[:breadth]):
            if len(paths) == budget:
                return paths
            paths.append((*path, successor))
            queue.append(((*path, successor), successor, max(1, breadth >> (rank + (0 if not path else 1)))))
    return paths


@settings(max_examples=100)
@given(
    st.dictionaries(st.integers(0, 6), st.lists(st.integers(0, 8), min_size=4, max_size=4, unique=True)),
    st.sets(st.integers(0, 6)),
    st.integers(1, 80),
    st.integers(0, 6),
)
def test_equals_a_queue_whatever_layer_holds_the_rows(
    rows: dict[int, list[int]], in_base: set[int], budget: int, max_depth: int
) -> None:
    base = CopyLogitTable(4)
    drafter = copy_drafter(4, base)
    for token, ids in rows.items():
        layer = base if token in in_base else drafter.table
        layer.write(np.array([token]), np.array([ids]), np.full((1, 4), 0.2))
    tree = drafter.propose(budget, max_depth)
    check_tree(tree, 0, budget, max_depth)
    assert paths_of(tree) == naive_paths(rows, 4, budget, max_depth)


def test_a_token_without_a_row_is_a_leaf() -> None:
    drafter = copy_drafter(2)
    assert len(drafter.propose(64, 64)) == 1
    drafter.learn(np.array([0]), np.array([[3, 4]]), np.array([[0.5, 0.25]]))
    tree = drafter.propose(64, 64)
    assert tree.tokens.tolist() == [0, 3, 4]
    assert tree.confidence.tolist() == [1.0, 0.5, 0.25]


def test_confidence_is_the_product_along_the_path_and_never_zero() -> None:
    drafter = copy_drafter(1)
    drafter.learn(np.array([0, 1]), np.array([[1], [0]]), np.array([[0.5], [0.1]]))
    tree = drafter.propose(200, 200)
    assert len(tree) == 200
    assert np.allclose(tree.confidence[:4], [1, 0.5, 0.05, 0.025])
    assert tree.confidence.min() > 0


def test_a_row_that_names_a_token_twice_gives_one_node() -> None:
    drafter = copy_drafter(2)
    drafter.learn(np.array([0]), np.array([[0, 0]]), np.array([[0.5, 0.5]]))
    check_tree(drafter.propose(64, 8), 0, 64, 8)
