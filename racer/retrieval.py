"""Retrieval tree: the continuations the automaton has seen, best first (RACER, section 3).

From each state of the current context (the cursors of depth >= min_match, which are the deepest state and its failure links)
the nodes below are collected in this order: higher count; smaller depth in the draft; greater depth in the automaton, that is
the longer match; newer latest occurrence; earlier selected parent. Counts never rise towards the leaves, so no candidate
outranks its parent, and best-first search yields the exact global order.

The union is by token path: a path found under several states is one node, ranked by its best candidate, and the search goes on
below all of them. A draft ends where the stored n-gram ends.

A path has at most one candidate per state depth, fewer than n. So the heap keeps budget * n candidates: when as many have been
taken, the budget is full.
"""

from __future__ import annotations

from numba import njit

from racer.automaton import COUNT, LAST
from racer.heap import ITEM, SIZE, Heap, clear, pop, push_bounded
from racer.limits import Limits, may_extend, may_stand, named_limits
from racer.tree import CHILD, DEPTH, PARENT, SIBLING, TOKEN, Int32Array, Int64Array, Source
from racer.workspace import CONFIDENCE, Draft, bounded, child_of, graft, plant

RETRIEVAL = int(Source.RETRIEVAL)
LOW16 = 0xFFFF  # draft depth and node index have 16 bits in the heap's keys


@njit(nogil=True, cache=True)
def _expand(nodes: Int32Array, tree: Int64Array, heap: Heap, node: int, state: int, limits: Limits) -> None:
    """Push the continuations of an automaton state as candidates below a node of the draft."""
    length = int(nodes[state, DEPTH]) + 1
    depth = int(tree[node, DEPTH]) + 1
    child = int(nodes[state, CHILD])
    while child != 0:
        if may_stand(limits.ends, int(nodes[child, TOKEN]), depth):
            major = (int(nodes[child, COUNT]) << 24) | ((LOW16 - depth) << 8) | length
            minor = (int(nodes[child, LAST]) << 16) | (LOW16 - node)
            push_bounded(heap, major, minor, child)
        child = int(nodes[child, SIBLING])


@njit(nogil=True, cache=True)
def retrieve(draft: Draft, nodes: Int32Array, cursors: Int32Array, root: int, min_match: int, limits: Limits) -> int:
    """Plant the root token and add the best continuations; returns the number of nodes. nodes, cursors: see racer.automaton.

    The confidence of a node is the product over its path of count(node) / count(state).
    """
    draft, limits = Draft(*draft), named_limits(limits)
    plant(draft, root)
    if limits.budget < 2 or limits.max_depth < 1:
        return 1
    tree, weights, heap = draft.tree, draft.weights, draft.heap
    clear(heap)
    for depth in range(cursors.size - 1, min_match - 1, -1):
        state = int(cursors[depth])
        if state != 0:
            _expand(nodes, tree, heap, 0, state, limits)
    count = 1
    while heap[0, SIZE] > 0 and count < limits.budget:
        row = pop(heap)
        parent = LOW16 - (int(heap[row, 1]) & LOW16)
        found = int(heap[row, ITEM])
        token = int(nodes[found, TOKEN])
        node = child_of(tree, parent, token)
        if node == 0:
            node = count
            count += 1
            state = int(nodes[found, PARENT])
            share = max(int(nodes[found, COUNT]), 1) / max(int(nodes[state, COUNT]), 1)
            graft(draft, node, parent, token, RETRIEVAL, bounded(float(weights[parent, CONFIDENCE]) * share))
        if may_extend(limits, tree, node):
            _expand(nodes, tree, heap, node, found, limits)
    return count
