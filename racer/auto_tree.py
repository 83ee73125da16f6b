"""The tree of policy `auto`: candidates of all sources in one order, by the probability that they will be accepted.

Each candidate (racer.candidates) has a learnt probability of being accepted after its parent (racer.acceptance). The product
of these along the path orders the candidates of the whole tree, best first. No child ranks above its parent, so every prefix
of the tree is the best tree of its size. The match of a path goes on past the end of a stored n-gram through the failure
links, so a long copy is drafted in one long run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from racer.acceptance import Acceptance, count
from racer.automaton import Trie, current, follow
from racer.candidates import FOUND_COPY, FOUND_RETRIEVAL, FOUND_TOKEN, MOST, Layers, Prior, candidates
from racer.heap import ITEM, SIZE, clear, pop, push
from racer.limits import Limits, may_extend, may_stand, named_limits
from racer.tree import DEPTH, PARENT, TOKEN, Float32Array, Int64Array, Source
from racer.workspace import CONFIDENCE, COPY, RETRIEVAL, STATE, Draft, graft, plant

FROM_RETRIEVAL = int(Source.RETRIEVAL)
FROM_COPY = int(Source.COPY_LOGIT)

# Columns of offers, int64. The heap orders their rows by probability, then by age, the older first.
OWNER = 0  # node that the candidate follows
CANDIDATE = 1  # token
KIND_RETRIEVAL = 2
KIND_COPY = 3

DECAY = 0.98  # of a session's record, for each candidate judged


class Ranking(NamedTuple):
    """How likely candidates are accepted.

    table: of racer.acceptance. scale float32 [2]: the session's own correction for retrieved and for copied candidates. floor:
    candidates below it are left out.
    """

    table: Float32Array
    scale: Float32Array
    floor: float


@njit(nogil=True, cache=True)
def grow(
    draft: Draft, trie: Trie, layers: Layers, prior: Prior, ranking: Ranking, root: int, previous: int, limits: Limits
) -> int:
    """Grow the best tree below the root token; returns the number of nodes.

    The confidence of a node is the estimated probability that it is accepted. previous: the token before the root, or -1.
    """
    draft, trie, ranking, limits = Draft(*draft), Trie(*trie), Ranking(*ranking), named_limits(limits)
    tree, heap = draft.tree, draft.heap
    nodes, keys, values = trie.nodes, trie.keys, trie.values
    plant(draft, root)
    tree[0, STATE] = current(trie)
    clear(heap)
    found = np.empty((MOST, 3), np.int64)
    offers = np.empty((MOST * limits.budget, 4), np.int64)
    offered = 0
    made = 1
    node = 0
    while True:
        if may_extend(limits, tree, node):
            before = previous if node == 0 else int(tree[tree[node, PARENT], TOKEN])
            size = candidates(nodes, layers, prior, int(tree[node, STATE]), before, int(tree[node, TOKEN]), found)
            offered = _offer(draft, node, found, size, ranking, limits, offers, offered)
        if heap[0, SIZE] == 0 or made == limits.budget:
            return made
        node = made
        made += 1
        row = pop(heap)
        _take(draft, node, offers, int(heap[row, ITEM]), heap[row, 0])
        if made < limits.budget:
            tree[node, STATE] = follow(nodes, keys, values, int(tree[tree[node, PARENT], STATE]), int(tree[node, TOKEN]))


@njit(nogil=True, cache=True)
def _offer(
    draft: Draft, node: int, found: Int64Array, size: int, ranking: Ranking, limits: Limits, offers: Int64Array, offered: int
) -> int:
    """Push the `size` candidates found after a node. Returns how many were pushed so far."""
    heap, table, scale = draft.heap, ranking.table, ranking.scale
    chance_here = draft.weights[node, CONFIDENCE]
    depth = int(draft.tree[node, DEPTH]) + 1
    for index in range(size):
        token = int(found[index, FOUND_TOKEN])
        retrieval = int(found[index, FOUND_RETRIEVAL])
        copy = int(found[index, FOUND_COPY])
        chance = table[retrieval, copy] * (scale[0] if retrieval > 0 else scale[1])
        chance = chance_here * min(chance, 0.995)
        if chance >= ranking.floor and may_stand(limits.ends, token, depth):
            offers[offered, OWNER] = node
            offers[offered, CANDIDATE] = token
            offers[offered, KIND_RETRIEVAL] = retrieval
            offers[offered, KIND_COPY] = copy
            push(heap, np.float64(np.float32(chance)), -float(offered), float(offered))
            offered += 1
    return offered


@njit(nogil=True, cache=True)
def _take(draft: Draft, node: int, offers: Int64Array, offer: int, chance: float) -> None:
    """Make row `node` of the tree out of an offer."""
    retrieval = int(offers[offer, KIND_RETRIEVAL])
    graft(
        draft,
        node,
        int(offers[offer, OWNER]),
        int(offers[offer, CANDIDATE]),
        FROM_RETRIEVAL if retrieval > 0 else FROM_COPY,
        chance,
    )
    draft.tree[node, RETRIEVAL] = retrieval
    draft.tree[node, COPY] = int(offers[offer, KIND_COPY])


@njit(nogil=True, cache=True)
def judge(tree: Int64Array, size: int, path: Int64Array, truth: int, acceptance: Acceptance, record: Float32Array) -> None:
    """Count which candidates were right, of those below accepted nodes, in a tree of which `size` nodes were verified.

    path: accepted nodes, root first. truth: the target's token after the last of them. record float32 [2, 2]: expected and
    actual hits of the session's retrieved and copied candidates, decayed.
    """
    acceptance = Acceptance(*acceptance)
    for step in range(path.size):
        parent = int(path[step])
        right = int(tree[path[step + 1], TOKEN]) if step + 1 < path.size else truth
        for node in range(parent + 1, size):
            if tree[node, PARENT] == parent:
                retrieval = int(tree[node, RETRIEVAL])
                copy = int(tree[node, COPY])
                hit = int(tree[node, TOKEN]) == right
                kind = 0 if retrieval > 0 else 1
                record[kind, 0] = record[kind, 0] * DECAY + acceptance.table[retrieval, copy]
                record[kind, 1] = record[kind, 1] * DECAY + (1.0 if hit else 0.0)
                count(acceptance, retrieval, copy, hit)
