"""The draft tree: flat arrays of nodes in topological order, node 0 the root."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
UInt8Array = npt.NDArray[np.uint8]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# The first columns of every table of nodes, in racer.automaton and racer.workspace. Row 0 is the root, so as a link 0 means
# "none": the root is nobody's child.
TOKEN = 0
PARENT = 1
DEPTH = 2
CHILD = 3  # first child
SIBLING = 4  # next sibling
SHARED_COLUMNS = 5


class Source(IntEnum):
    """Where a token came from."""

    RETRIEVAL = 0
    COPY_LOGIT = 1
    DRAFT_MODEL = 2
    TARGET = 3
    GRAMMAR = 4  # the only token that the grammar allows there


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Tokens to verify in one step.

    All arrays have shape [n], n >= 1. Node 0 is the root: the last emitted token, parent -1, depth 0, source TARGET.
    Parents come before their children, and no two children of a node carry the same token.
    """

    tokens: Int64Array
    parents: Int32Array
    depth: Int32Array
    source: UInt8Array
    confidence: Float32Array

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    @staticmethod
    def root_only(token: int) -> DraftTree:
        """A tree of the root alone: plain decoding."""
        return DraftTree(
            np.array([token], np.int64),
            np.array([-1], np.int32),
            np.zeros(1, np.int32),
            np.array([Source.TARGET], np.uint8),
            np.ones(1, np.float32),
        )

    def ancestors(self) -> BoolArray:
        """Mask [n, n]: row i is true at i and at each of its ancestors."""
        n = len(self)
        mask = np.eye(n, dtype=np.bool_)
        for node in range(1, n):
            mask[node] |= mask[self.parents[node]]
        return mask

    def first(self, n: int) -> DraftTree:
        """The first n nodes. They are a tree too, since parents come before their children."""
        if n >= len(self):
            return self
        return DraftTree(self.tokens[:n], self.parents[:n], self.depth[:n], self.source[:n], self.confidence[:n])

    def child_with(self, node: int, token: int) -> int:
        """The child of node that carries token, or -1."""
        hits = np.flatnonzero((self.parents == node) & (self.tokens == token))
        return int(hits[0]) if hits.size else -1
