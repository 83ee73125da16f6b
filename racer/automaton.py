"""Aho-Corasick automaton over all k-grams, k <= n, of one session's tokens, bounded by LRU eviction (RACER, section 3).

Windows. When token x[t] arrives, each of the n open windows (those that start at t-n+1 .. t) grows by it, and cursor d is the
node of the latest d tokens. The nodes are found or made from the shortest window to the longest, so the failure target of
depth d is the node of depth d-1 visited just before: failure links are always exact and never need repair.

Recency. With each token all prefixes of all open windows are touched, the longest window first and within a window the deepest
node first. Hence (I1) a prefix is at least as recent as its extensions, and (I2) a suffix is at least as recent as the strings
that end in it. The oldest node is therefore a leaf without incoming failure links, so its eviction leaves no link behind. While
the nodes of a token are being made, those already visited are the newest and the open windows come right after them. These are
at most n(n+1)/2 nodes, so with a larger capacity no node in use is evicted.

Counts. count[v] is the number of stored occurrences that pass through v or end in it. Evicting a leaf subtracts its count from
all its ancestors, so count(parent) >= sum of count(children) >= 0 always holds. A node whose continuations have all been
evicted has count 0; it ranks last and stays until it is the oldest itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from racer.hashing import copy_entries, delete, find, insert, make_hash
from racer.lru import make_links, oldest, push_newest, touch, unlink
from racer.tree import CHILD, DEPTH, PARENT, SHARED_COLUMNS, SIBLING, TOKEN, Int32Array, Int64Array

# Columns of nodes behind those that all tables of nodes share.
FAIL = SHARED_COLUMNS  # failure link
COUNT = SHARED_COLUMNS + 1
LAST = SHARED_COLUMNS + 2  # position of the token that ended its latest occurrence
PREVIOUS = SHARED_COLUMNS + 3  # previous sibling
COLUMNS = SHARED_COLUMNS + 4

# Entries of meta, int64[3].
USED = 0
LENGTH = 1  # tokens seen
EVICTIONS = 2

FIRST_NODES = 1024  # allocated at first; enough for n-grams of any length allowed
MAX_TOKEN = 2**31
MAX_NGRAM = 62  # each token touches n(n+1)/2 nodes


class Trie(NamedTuple):
    """The automaton's arrays.

    nodes int32 [rows + 1, COLUMNS]. links: recency (racer.lru). keys, values: hash from `parent << 32 | token` to the child
    (racer.hashing). cursors int32 [n + 1]: entry d is the node of the latest d tokens, 0 while there are fewer. meta int64 [3].
    """

    nodes: Int32Array
    links: Int32Array
    keys: Int64Array
    values: Int32Array
    cursors: Int32Array
    meta: Int64Array


@njit(nogil=True, cache=True)
def _evict(nodes: Int32Array, links: Int32Array, keys: Int64Array, values: Int32Array, node: int) -> None:
    """Remove a leaf without incoming failure link (I1, I2) from the trie, its ancestors' counts and the recency order."""
    parent = int(nodes[node, PARENT])
    delete(keys, values, (parent << 32) | int(nodes[node, TOKEN]))
    following = nodes[node, SIBLING]
    previous = nodes[node, PREVIOUS]
    if previous == 0:
        nodes[parent, CHILD] = following
    else:
        nodes[previous, SIBLING] = following
    if following != 0:
        nodes[following, PREVIOUS] = previous
    ancestor = parent
    while ancestor != 0:
        nodes[ancestor, COUNT] -= nodes[node, COUNT]
        ancestor = int(nodes[ancestor, PARENT])
    unlink(links, node)


@njit(nogil=True, cache=True)
def _create(
    nodes: Int32Array,
    links: Int32Array,
    keys: Int64Array,
    values: Int32Array,
    meta: Int64Array,
    parent: int,
    token: int,
    fail: int,
) -> int:
    """Make the child of parent for token, in a free row or in that of the oldest node."""
    if meta[USED] < nodes.shape[0] - 1:
        meta[USED] += 1
        node = int(meta[USED])
    else:
        node = oldest(links)
        _evict(nodes, links, keys, values, node)
        meta[EVICTIONS] += 1
    nodes[node, TOKEN] = token
    nodes[node, PARENT] = parent
    nodes[node, FAIL] = fail
    nodes[node, DEPTH] = nodes[parent, DEPTH] + 1
    nodes[node, COUNT] = 0
    nodes[node, CHILD] = 0
    first = nodes[parent, CHILD]
    nodes[node, SIBLING] = first
    nodes[node, PREVIOUS] = 0
    if first != 0:
        nodes[first, PREVIOUS] = node
    nodes[parent, CHILD] = node
    insert(keys, values, (parent << 32) | token, node)
    push_newest(links, node)
    return node


@njit(nogil=True, cache=True)
def append(trie: Trie, tokens: Int64Array, first: int, capacity: int) -> int:
    """Feed tokens int64[m] from index `first` on. Returns the index of the first token that was not fed, m if all were.

    It stops where the rows of nodes may be too few for the next token while they may still grow to `capacity`. If a token is
    out of range, none is fed, and -1 - index is returned.
    """
    nodes, links, keys, values, cursors, meta = trie
    longest = cursors.size - 1
    rows = nodes.shape[0] - 1
    if first == 0:
        for index in range(tokens.size):
            if tokens[index] < 0 or tokens[index] >= MAX_TOKEN:
                return -1 - index
    for index in range(first, tokens.size):
        token = int(tokens[index])
        position = int(meta[LENGTH])
        deepest = min(longest, position + 1)
        if rows < capacity and meta[USED] + deepest > rows:
            return index
        parent = 0  # cursor of depth d-1 as it was before this token
        shorter = 0  # cursor of depth d-1 as it is now: the failure target of depth d
        for depth in range(1, deepest + 1):
            node = find(keys, values, (parent << 32) | token)
            if node < 0:
                node = _create(nodes, links, keys, values, meta, parent, token, shorter)
            else:
                touch(links, node)
            nodes[node, COUNT] += 1
            nodes[node, LAST] = position
            parent = int(cursors[depth])
            cursors[depth] = node
            shorter = node
        meta[LENGTH] = position + 1
        for depth in range(deepest, 0, -1):
            node = int(cursors[depth])
            while node != 0:
                touch(links, node)
                node = int(nodes[node, PARENT])
    return int(tokens.size)


@njit(nogil=True, cache=True)
def current(trie: Trie) -> int:
    """The deepest node that the whole text ends in; 0 before the first token."""
    return int(trie.cursors[min(trie.cursors.size - 1, trie.meta[LENGTH])])


@njit(nogil=True, cache=True)
def follow(nodes: Int32Array, keys: Int64Array, values: Int32Array, state: int, token: int) -> int:
    """The automaton's transition: the deepest node that the state's text followed by token ends in; 0 if there is none."""
    while True:
        child = int(find(keys, values, (state << 32) | token))
        if child >= 0:
            return child
        if state == 0:
            return 0
        state = int(nodes[state, FAIL])


def least_capacity(n: int) -> int:
    """The least capacity at which no node in use is ever evicted."""
    return n * (n + 1) // 2 + 1


def as_tokens(tokens: npt.ArrayLike) -> Int64Array:
    """Token ids as int64[m], contiguous and writable: one array type, so that no kernel is compiled twice."""
    flat = np.ascontiguousarray(tokens, np.int64).reshape(-1)
    return flat if flat.flags.writeable else flat.copy()


class NgramAutomaton:
    """All k-grams, k <= n, of the tokens appended, in at most `capacity` nodes besides the root.

    Rows are allocated as needed, by doubling up to the capacity; 0.9 MB at 10,000.
    """

    def __init__(self, n: int = 10, capacity: int = 10_000) -> None:
        if not 1 <= n <= MAX_NGRAM:
            raise ValueError(f"n must be between 1 and {MAX_NGRAM}, got {n}")
        if not least_capacity(n) <= capacity < MAX_TOKEN:
            raise ValueError(f"{n}-grams need a capacity of at least {least_capacity(n)} nodes, got {capacity}")
        self.n = n
        self.capacity = capacity
        self.trie = _trie(min(capacity, FIRST_NODES), np.zeros(n + 1, np.int32), np.zeros(3, np.int64))

    def append(self, tokens: npt.NDArray[np.integer] | Sequence[int]) -> None:
        """Feed tokens [m], ids in [0, 2**31), in order. Raises ValueError, and changes nothing, when one is out of range."""
        flat = as_tokens(tokens)
        fed = int(append(tuple(self.trie), flat, 0, self.capacity))
        if fed < 0:
            raise ValueError(f"token ids must be in [0, 2**31), got {flat[-1 - fed]} at index {-1 - fed}")
        while fed < flat.size:
            self._grow()
            fed = int(append(tuple(self.trie), flat, fed, self.capacity))

    def _grow(self) -> None:
        old = self.trie
        self.trie = _trie(min(2 * (len(old.nodes) - 1), self.capacity), old.cursors, old.meta)
        self.trie.nodes[: len(old.nodes)] = old.nodes
        self.trie.links[: len(old.links)] = old.links
        copy_entries(old.keys, old.values, self.trie.keys, self.trie.values)

    def __len__(self) -> int:
        """Nodes in use, without the root."""
        return int(self.trie.meta[USED])

    @property
    def evictions(self) -> int:
        return int(self.trie.meta[EVICTIONS])

    @property
    def nbytes(self) -> int:
        """Size of the state in bytes."""
        return sum(array.nbytes for array in self.trie)


def _trie(rows: int, cursors: Int32Array, meta: Int64Array) -> Trie:
    """An empty trie with these cursors and meta."""
    keys, values = make_hash(rows)
    return Trie(np.zeros((rows + 1, COLUMNS), np.int32), make_links(rows), keys, values, cursors, meta)
