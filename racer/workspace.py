"""The tree under construction: scratch arrays a drafter owns and reuses, and the kernels that add nodes to it."""

from __future__ import annotations

import numpy as np
from numba import njit

from racer.tree import DraftTree, Float32Array, Int64Array

# Columns of tree, int64[budget, COLUMNS]; as a link 0 means "none", for the root is nobody's child.
TOKEN = 0
PARENT = 1
DEPTH = 2
SOURCE = 3
CHILD = 4  # first child
SIBLING = 5  # next sibling
BREADTH = 6  # breadth in the copy-logit tree, 0 while that tree has not reached the node
QUEUE = 7  # not of the node: entry i is the i-th node the copy-logit tree reached
COLUMNS = 8

# Columns of weights, float32[budget, 2].
CONFIDENCE = 0
COPY_CONFIDENCE = 1  # product of the copy-logit probabilities along the path

# Keeps products of many small factors above zero.
TINY = 1e-30


@njit(nogil=True, cache=True)
def plant(tree: Int64Array, weights: Float32Array, token: int, source: int) -> None:
    """Make row 0 the root."""
    tree[0, :] = 0
    tree[0, TOKEN] = token
    tree[0, PARENT] = -1
    tree[0, SOURCE] = source
    weights[0, CONFIDENCE] = 1.0
    weights[0, COPY_CONFIDENCE] = 1.0


@njit(nogil=True, cache=True)
def child_of(tree: Int64Array, parent: int, token: int) -> int:
    """The child of parent that carries token, or 0."""
    child = int(tree[parent, CHILD])
    while child != 0 and tree[child, TOKEN] != token:
        child = int(tree[child, SIBLING])
    return child


@njit(nogil=True, cache=True)
def graft(tree: Int64Array, weights: Float32Array, node: int, parent: int, token: int, source: int, confidence: float) -> None:
    """Make row `node`, the first free one, a child of parent."""
    tree[node, TOKEN] = token
    tree[node, PARENT] = parent
    tree[node, DEPTH] = tree[parent, DEPTH] + 1
    tree[node, SOURCE] = source
    tree[node, CHILD] = 0
    tree[node, SIBLING] = tree[parent, CHILD]
    tree[parent, CHILD] = node
    tree[node, BREADTH] = 0
    weights[node, CONFIDENCE] = max(min(confidence, 1.0), TINY)


class Workspace:
    """Scratch of one drafter: tree, weights, and the heap of the retrieval (see racer.retrieval). Grows, never shrinks."""

    def __init__(self, ngram: int) -> None:
        self._ngram = ngram
        self._budget = 0
        self.reserve(64)

    def reserve(self, budget: int) -> None:
        """Make room for trees of `budget` nodes."""
        if budget <= self._budget:
            return
        self._budget = budget
        self.tree: Int64Array = np.zeros((budget, COLUMNS), np.int64)
        self.weights: Float32Array = np.zeros((budget, 2), np.float32)
        self.heap: Int64Array = np.zeros((2 * budget * self._ngram + 1, 3), np.int64)

    @property
    def nbytes(self) -> int:
        return self.tree.nbytes + self.weights.nbytes + self.heap.nbytes

    def harvest(self, count: int) -> DraftTree:
        """The first `count` rows as a tree of its own."""
        rows = self.tree[:count]
        return DraftTree(
            rows[:, TOKEN].copy(),
            rows[:, PARENT].astype(np.int32),
            rows[:, DEPTH].astype(np.int32),
            rows[:, SOURCE].astype(np.uint8),
            self.weights[:count, CONFIDENCE].copy(),
        )
