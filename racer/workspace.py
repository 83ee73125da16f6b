"""The tree under construction: arrays that a drafter owns and reuses, and the kernels that add nodes to it.

Arrays that belong together are NamedTuples. From Python, kernels get them as plain tuples, which numba takes in faster by a
microsecond each, and name them in their first lines.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from racer.heap import COLUMNS as HEAP_COLUMNS
from racer.heap import Heap
from racer.tree import CHILD, DEPTH, PARENT, SHARED_COLUMNS, SIBLING, TOKEN, DraftTree, Float32Array, Int64Array, Source

TARGET = int(Source.TARGET)

# Columns of tree behind those that all tables of nodes share.
SOURCE = SHARED_COLUMNS
BREADTH = SHARED_COLUMNS + 1  # breadth in the copy-logit tree (racer.copy_tree); 0 until that tree has reached the node
QUEUE = SHARED_COLUMNS + 2  # not of the node: entry i is the i-th node that the copy-logit tree reached
STATE = SHARED_COLUMNS + 3  # the deepest automaton node that the path ends in (racer.auto_tree)
RETRIEVAL = SHARED_COLUMNS + 4  # retrieval class (racer.acceptance)
COPY = SHARED_COLUMNS + 5  # copy-logit class
COLUMNS = SHARED_COLUMNS + 6

# Columns of weights.
CONFIDENCE = 0
COPY_CONFIDENCE = 1  # product of the copy-logit probabilities along the path

TINY = 1e-30  # least confidence, so that a product of many small factors does not become zero


class Draft(NamedTuple):
    """tree int64 [budget, COLUMNS], weights float32 [budget, 2], and the heap of candidates (racer.heap)."""

    tree: Int64Array
    weights: Float32Array
    heap: Heap


@njit(nogil=True, cache=True)
def plant(draft: Draft, token: int) -> None:
    """Make row 0 the root."""
    draft.tree[0, :] = 0
    draft.tree[0, TOKEN] = token
    draft.tree[0, PARENT] = -1
    draft.tree[0, SOURCE] = TARGET
    draft.weights[0, CONFIDENCE] = 1.0
    draft.weights[0, COPY_CONFIDENCE] = 1.0


@njit(nogil=True, cache=True)
def child_of(tree: Int64Array, parent: int, token: int) -> int:
    """The child of parent that carries token, or 0."""
    child = int(tree[parent, CHILD])
    while child != 0 and tree[child, TOKEN] != token:
        child = int(tree[child, SIBLING])
    return child


@njit(nogil=True, cache=True)
def graft(draft: Draft, node: int, parent: int, token: int, source: int, confidence: float) -> None:
    """Make row `node`, the first free one, a child of parent."""
    tree = draft.tree
    tree[node, TOKEN] = token
    tree[node, PARENT] = parent
    tree[node, DEPTH] = tree[parent, DEPTH] + 1
    tree[node, SOURCE] = source
    tree[node, CHILD] = 0
    tree[node, SIBLING] = tree[parent, CHILD]
    tree[parent, CHILD] = node
    tree[node, BREADTH] = 0
    draft.weights[node, CONFIDENCE] = confidence


@njit(nogil=True, cache=True)
def bounded(confidence: float) -> float:
    return max(min(confidence, 1.0), TINY)


class Workspace:
    """The arrays of one drafter. They grow with the budget and never shrink.

    keep: candidates that the heap must keep for each node of the budget. dtype: of their keys (racer.heap).
    """

    def __init__(self, budget: int = 64, keep: int = 0, dtype: npt.DTypeLike = np.int64) -> None:
        self._keep, self._dtype = keep, dtype
        self._allocate(budget)

    def _allocate(self, budget: int) -> None:
        self.draft = Draft(
            np.zeros((budget, COLUMNS), np.int64),
            np.zeros((budget, 2), np.float32),
            np.zeros((2 * self._keep * budget + 1, HEAP_COLUMNS), self._dtype),
        )

    def reserve(self, budget: int) -> Draft:
        """The arrays, large enough for a tree of `budget` nodes."""
        if budget > len(self.draft.tree):
            self._allocate(budget)
        return self.draft

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.draft)

    def harvest(self, count: int) -> DraftTree:
        """The first `count` nodes as a tree of its own."""
        rows = self.draft.tree[:count]
        return DraftTree(
            rows[:, TOKEN].copy(),
            rows[:, PARENT].astype(np.int32),
            rows[:, DEPTH].astype(np.int32),
            rows[:, SOURCE].astype(np.uint8),
            self.draft.weights[:count, CONFIDENCE].copy(),
        )
