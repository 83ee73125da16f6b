"""Hybrid drafting: RACER's tree and the draft model's chain as one tree, best node first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from racer.tree import DraftTree, Int64Array, Source


@dataclass(frozen=True, slots=True)
class MergedTree:
    """What is verified for one session.

    own int64 [n], where the tree was merged: each node's place in the drafter's own tree, -1 where only the chain has it.
    """

    tree: DraftTree
    own: Int64Array | None = None

    def first(self, n: int) -> MergedTree:
        return MergedTree(self.tree.first(n), None if self.own is None else self.own[:n])

    def own_share(self, path: Sequence[int], tokens: Sequence[int]) -> tuple[int, list[int], int]:
        """What became of the drafter's own tree, for its `judge`: verified nodes, accepted path, the token after it.

        path, tokens: accepted nodes and emitted tokens of the verified tree; tokens[i] came after path[i]. The drafter's tree
        is judged as far as its own order was verified without a gap.
        """
        if self.own is None:
            return len(self.tree), list(path), tokens[len(path) - 1]
        present = np.zeros(len(self.own) + 1, np.bool_)
        present[self.own[(self.own >= 0) & (self.own < len(self.own))]] = True
        verified = int(np.argmin(present))
        kept: list[int] = []
        for node in path:
            place = int(self.own[node])
            if not 0 <= place < verified:
                break
            kept.append(place)
        return verified, kept, tokens[len(kept) - 1]


def merge(own: DraftTree, tokens: Sequence[int], chances: Sequence[float], source: Source = Source.DRAFT_MODEL) -> MergedTree:
    """One tree of a drafter's own and a chain, in falling order of estimated acceptance; a node that both hold exists once.

    What the source of the chain says of its token is believed, and the siblings share what that leaves.
    """
    n = len(own)
    parents = own.parents.astype(np.int64)
    relative = np.ones(n)
    relative[1:] = own.confidence[1:] / np.maximum(own.confidence[parents[1:]], 1e-12)
    added: list[tuple[int, int, float]] = []  # token, parent, chance of the nodes that only the chain has
    node = 0
    for token, chance in zip(tokens, chances, strict=True):
        children = np.flatnonzero(parents == node) if node < n else np.zeros(0, np.int64)
        same = children[own.tokens[children] == token]
        believed = float(relative[same[0]]) if same.size else 0.0
        relative[children] *= (1.0 - chance) / max(1.0 - believed, 1e-3)
        if same.size:
            node = int(same[0])
            relative[node] = chance
        else:
            added.append((token, node, chance))
            node = n + len(added) - 1
    more_tokens, more_parents, more_chances = zip(*added, strict=True) if added else ((), (), ())
    parents = np.concatenate([parents, np.asarray(more_parents, np.int64)])
    relative = np.minimum(np.concatenate([relative, np.asarray(more_chances, np.float64)]), 1.0).astype(np.float32)
    depth = np.concatenate([own.depth, np.zeros(len(added), np.int32)])
    for place in range(n, n + len(added)):
        depth[place] = depth[parents[place]] + 1
    confidence = np.ones(n + len(added), np.float32)
    for level in range(1, int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(depth == level)
        confidence[here] = confidence[parents[here]] * relative[here]
    order = np.lexsort((depth, -confidence))  # a parent stands before its children, also among equals
    place_of = np.empty(len(order), np.int64)
    place_of[order] = np.arange(len(order))
    sources = np.concatenate([own.source, np.full(len(added), source, np.uint8)])
    new_parents = np.where(parents[order] < 0, -1, place_of[parents[order]])
    tree = DraftTree(
        np.concatenate([own.tokens, np.asarray(more_tokens, np.int64)])[order],
        new_parents.astype(np.int32),
        depth[order],
        sources[order],
        confidence[order],
    )
    return MergedTree(tree, np.where(order < n, order, -1))


def depth_chances(tree: DraftTree) -> list[float]:
    """[d]: estimated probability that at least d + 1 of the tree's tokens are accepted in a step."""
    sums = np.bincount(tree.depth, weights=tree.confidence)[1:]
    return [float(chance) for chance in np.minimum(sums, 1.0)]
