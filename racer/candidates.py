"""The candidates of policy `auto`: which tokens may follow a path, and the classes that their chances are learnt by.

They are the continuations of the path's longest matches in the automaton, and the successors in the most specific copy-logit
row: of the last two tokens before that of the last one, of the session before the warm layer, and the model's prior last. Both
sources often propose the same token; it is one candidate with two classes (see racer.acceptance).
"""

from __future__ import annotations

from numba import njit

from racer.acceptance import copy_class, retrieval_class
from racer.automaton import COUNT, FAIL
from racer.copy_logits import Rows
from racer.hashing import find
from racer.tree import CHILD, DEPTH, SIBLING, TOKEN, Float32Array, Int32Array, Int64Array

MIN_MATCH = 1  # tokens; a bigram seen before is weak evidence, but evidence
SCAN = 32  # children of one automaton node that are looked at
PER_STATE = 4  # the most frequent of them that become candidates
ENOUGH = 4  # retrieved candidates after which shorter matches are not searched
MOST = 16  # candidates of one node

# Columns of found, int64 [MOST, 3].
FOUND_TOKEN = 0
FOUND_RETRIEVAL = 1  # class, 0: not retrieved
FOUND_COPY = 2  # class, 0: in no row; while a match is read, how often the continuation was seen


Layers = tuple[Rows, Rows, Rows, Rows]  # rows by two tokens, of the session and the warm layer; then by one token, of the same
# ids int32 [n, k] and probabilities float32 [n, k]: the target's successors of each token below n without context
Prior = tuple[Int32Array, Float32Array]


@njit(nogil=True, cache=True)
def _place(found: Int64Array, first: int, size: int, token: int, times: int) -> int:
    """The row of found for a continuation seen `times` times, among those of its state (rows first to size), or -1."""
    for index in range(first):
        if found[index, FOUND_TOKEN] == token:
            return -1  # a longer match proposed it
    if size - first < PER_STATE:
        return size
    least = first
    for index in range(first + 1, size):
        if found[index, FOUND_COPY] < found[least, FOUND_COPY]:
            least = index
    return least if found[least, FOUND_COPY] < times else -1


@njit(nogil=True, cache=True)
def _retrieved(nodes: Int32Array, state: int, found: Int64Array) -> int:
    """Write the continuations of state and its suffixes, with copy-logit class 0, to found; returns how many."""
    size = 0
    while state != 0 and nodes[state, DEPTH] >= MIN_MATCH and size < ENOUGH:
        total = 0
        first = size
        seen = 0
        child = int(nodes[state, CHILD])
        while child != 0 and seen < SCAN:
            times = int(nodes[child, COUNT])
            total += times
            seen += 1
            token = int(nodes[child, TOKEN])
            place = _place(found, first, size, token, times) if times > 0 else -1
            if place >= 0:
                found[place, FOUND_TOKEN] = token
                found[place, FOUND_COPY] = times
                size = max(size, place + 1)
            child = int(nodes[child, SIBLING])
        for index in range(first, size):
            times = int(found[index, FOUND_COPY])
            found[index, FOUND_RETRIEVAL] = retrieval_class(int(nodes[state, DEPTH]), times, total)
        state = int(nodes[state, FAIL])
    for index in range(size):
        found[index, FOUND_COPY] = 0
    return size


@njit(nogil=True, cache=True)
def _copied(ids: Int32Array, probs: Float32Array, row: int, kind: int, found: Int64Array, size: int) -> int:
    """Add the successors in a row to the `size` candidates found; returns how many there are then."""
    for rank in range(ids.shape[1]):
        token = int(ids[row, rank])
        if token < 0:
            break
        label = copy_class(kind, probs[row, rank])
        place = -1
        for index in range(size):
            if found[index, FOUND_TOKEN] == token:
                place = index
        if place < 0:
            if size == MOST:
                break
            place = size
            size += 1
            found[place, FOUND_TOKEN] = token
            found[place, FOUND_RETRIEVAL] = 0
        found[place, FOUND_COPY] = label
    return size


@njit(nogil=True, cache=True)
def candidates(nodes: Int32Array, layers: Layers, prior: Prior, state: int, before: int, here: int, found: Int64Array) -> int:
    """Write the candidates after the tokens (before, here) to found; returns how many.

    nodes: of the automaton. state: the deepest node that the path ends in. before: -1 where there is no such token.
    """
    size = _retrieved(nodes, state, found)
    for kind in range(len(layers)):
        if kind < 2 and before < 0:
            continue
        keys, values, ids, probs = layers[kind]
        row = find(keys, values, (before << 32) | here if kind < 2 else here)
        if row >= 0:
            return int(_copied(ids, probs, row, kind, found, size))
    if here < prior[0].shape[0]:
        size = _copied(prior[0], prior[1], here, len(layers), found, size)
    return int(size)
