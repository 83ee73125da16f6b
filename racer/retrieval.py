"""Retrieval tree: the continuations the automaton has seen, best first (RACER, section 3).

From each state of the current context (the cursors of depth >= min_match, which are the deepest state and its failure links)
the nodes below are collected in the order: count, higher first; depth in the draft, shallower first; depth in the automaton,
that is length of the match, longer first; latest occurrence, newer first; earlier selected parent first. Counts never rise
towards the leaves, so no candidate outranks its parent, and best-first search yields the exact global order.

The union is by token path: a path found under several states is one node, ranked by its best candidate, and the search goes on
below all of them. A draft ends where the stored n-gram ends.
"""

from __future__ import annotations

from numba import njit

from racer import automaton as trie
from racer import workspace as ws
from racer.ends import Ends, is_end, may_stand
from racer.tree import Float32Array, Int32Array, Int64Array, Source
from racer.workspace import child_of, graft, plant

ROOT_SOURCE = int(Source.TARGET)
RETRIEVAL = int(Source.RETRIEVAL)
LOW16 = 0xFFFF  # draft depth and node index have 16 bits in the heap's keys

# heap is int64[2 * keep + 1, 3]: row 0 is the header (size, and the two keys of the floor), rows 1.. are a binary max-heap of
# candidates (major key, minor key, automaton node). A path has at most one candidate per state depth, fewer than n, so when
# `keep = budget * n` candidates outrank one, the budget is full before its turn. Hence a full heap is cut to the best `keep`,
# and whatever ranks below the last of them (the floor) is turned away: bounded memory and time, and the exact result.
SIZE = 0


@njit(nogil=True, cache=True)
def _below(heap: Int64Array, row: int, other: int) -> bool:
    """Whether row ranks below other."""
    if heap[row, 0] != heap[other, 0]:
        return bool(heap[row, 0] < heap[other, 0])
    return bool(heap[row, 1] < heap[other, 1])


@njit(nogil=True, cache=True)
def _swap(heap: Int64Array, row: int, other: int) -> None:
    for column in range(3):
        held = heap[row, column]
        heap[row, column] = heap[other, column]
        heap[other, column] = held


@njit(nogil=True, cache=True)
def _pop(heap: Int64Array) -> int:
    """Move the best candidate to the row just behind the heap and return that row."""
    size = int(heap[0, SIZE])
    _swap(heap, 1, size)
    heap[0, SIZE] = size - 1
    row = 1
    while 2 * row < size:
        child = 2 * row
        if child + 1 < size and _below(heap, child, child + 1):
            child += 1
        if not _below(heap, row, child):
            break
        _swap(heap, row, child)
        row = child
    return size


@njit(nogil=True, cache=True)
def _cut(heap: Int64Array, keep: int) -> None:
    """Reduce a full heap of 2 * keep candidates to the best `keep` and set the floor."""
    for _ in range(keep):
        _pop(heap)
    # The best now lie behind the heap, best last; in falling order they are a heap themselves.
    for row in range(1, keep + 1):
        _swap(heap, row, 2 * keep + 1 - row)
    heap[0, 0] = keep
    heap[0, 1] = heap[keep, 0]
    heap[0, 2] = heap[keep, 1]


@njit(nogil=True, cache=True)
def _push(heap: Int64Array, keep: int, major: int, minor: int, node: int) -> None:
    if major < heap[0, 1] or (major == heap[0, 1] and minor < heap[0, 2]):
        return
    if heap[0, SIZE] == 2 * keep:
        _cut(heap, keep)
    row = int(heap[0, SIZE]) + 1
    heap[0, SIZE] = row
    heap[row, 0] = major
    heap[row, 1] = minor
    heap[row, 2] = node
    while row > 1 and _below(heap, row // 2, row):
        _swap(heap, row, row // 2)
        row //= 2


@njit(nogil=True, cache=True)
def _expand(nodes: Int32Array, tree: Int64Array, heap: Int64Array, keep: int, draft: int, state: int, ends: Ends) -> None:
    """Push the children of state as candidates below the draft node."""
    length = int(nodes[state, trie.DEPTH]) + 1
    depth = int(tree[draft, ws.DEPTH]) + 1
    node = int(nodes[state, trie.CHILD])
    while node != 0:
        if may_stand(ends, int(nodes[node, trie.TOKEN]), depth):
            major = (int(nodes[node, trie.COUNT]) << 24) | ((LOW16 - depth) << 8) | length
            minor = (int(nodes[node, trie.LAST]) << 16) | (LOW16 - draft)
            _push(heap, keep, major, minor, node)
        node = int(nodes[node, trie.NEXT])


@njit(nogil=True, cache=True)
def retrieve(
    nodes: Int32Array,
    cursors: Int32Array,
    tree: Int64Array,
    weights: Float32Array,
    heap: Int64Array,
    token: int,
    budget: int,
    max_depth: int,
    min_match: int,
    ends: Ends,
) -> int:
    """Plant token as the root and add the best continuations, at most `budget` nodes with the root.

    Returns the number of nodes. The confidence of a node is the product over its path of count(node) / count(state).
    """
    plant(tree, weights, token, ROOT_SOURCE)
    if budget < 2 or max_depth < 1:
        return 1
    keep = budget * (cursors.size - 1)
    heap[0, :] = 0
    for depth in range(cursors.size - 1, min_match - 1, -1):
        state = int(cursors[depth])
        if state != 0:
            _expand(nodes, tree, heap, keep, 0, state, ends)
    count = 1
    while heap[0, SIZE] > 0 and count < budget:
        row = _pop(heap)
        parent = LOW16 - (int(heap[row, 1]) & LOW16)
        node = int(heap[row, 2])
        follower = int(nodes[node, trie.TOKEN])
        draft = child_of(tree, parent, follower)
        if draft == 0:
            draft = count
            count += 1
            state = int(nodes[node, trie.PARENT])
            share = max(int(nodes[node, trie.COUNT]), 1) / max(int(nodes[state, trie.COUNT]), 1)
            graft(tree, weights, draft, parent, follower, RETRIEVAL, float(weights[parent, ws.CONFIDENCE]) * share)
        if tree[draft, ws.DEPTH] < max_depth and not is_end(ends, follower):
            _expand(nodes, tree, heap, keep, draft, node, ends)
    return count
