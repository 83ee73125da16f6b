"""The tree of `policy: auto`: candidates of all sources in one order, by the probability that they will be accepted.

A node's candidates are the continuations of the longest matches of its path in the automaton and the successors in the
latest row of its last two tokens or, without one, of its last token; a token without any has the model's prior row. The match
of a path is followed past the end of a stored n-gram, through the failure links, so a long copy is drafted long. Each
candidate has a learnt probability to be accepted after its parent (racer.acceptance); the product along the path orders the
candidates, best first, over the whole tree. Since a child never outranks its parent, every prefix of the tree is the best
tree of its size.
"""

from __future__ import annotations

from numba import njit

from racer import automaton as trie
from racer.acceptance import copy_class, count, retrieval_class
from racer.ends import Ends, is_end, may_stand
from racer.hashing import find
from racer.tree import Float32Array, Float64Array, Int32Array, Int64Array, Source

# Columns of tree, int64[budget, COLUMNS].
TOKEN = 0
PARENT = 1
DEPTH = 2
SOURCE = 3
STATE = 4  # the deepest automaton node that the path ends in
RETRIEVAL = 5  # class, see racer.acceptance
COPY = 6
COLUMNS = 7

# Columns of heap, int64[MOST * budget + 1, HEAP_COLUMNS], rows from 1; its order is in heap_keys and SERIAL.
OWNER = 0
CANDIDATE = 1
KIND_RETRIEVAL = 2
KIND_COPY = 3
SERIAL = 4
HEAP_COLUMNS = 5

Row = tuple[Int32Array, Float32Array]
TrieArrays = tuple[Int32Array, Int64Array, Int32Array]
RowArrays = tuple[Int64Array, Int32Array, Int32Array, Float32Array]
Layers = tuple[RowArrays, RowArrays, RowArrays, RowArrays]

MIN_MATCH = 1  # tokens; a bigram seen is weak evidence, but evidence
SCAN = 32  # children of one automaton node that are looked at
PER_STATE = 4  # the most frequent of them that become candidates
ENOUGH = 4  # retrieved candidates after which shorter matches are not asked
MOST = 16  # candidates of one node

TARGET = int(Source.TARGET)
FROM_RETRIEVAL = int(Source.RETRIEVAL)
FROM_COPY = int(Source.COPY_LOGIT)


@njit(nogil=True, cache=True)
def follow(nodes: Int32Array, keys: Int64Array, values: Int32Array, state: int, token: int) -> int:
    """The automaton's transition: the deepest node that state's text and this token end in, 0 if there is none."""
    while True:
        child = int(find(keys, values, (state << 32) | token))
        if child >= 0:
            return child
        if state == 0:
            return 0
        state = int(nodes[state, trie.FAIL])


@njit(nogil=True, cache=True)
def _place(found: Int64Array, first: int, size: int, token: int, times: int) -> int:
    """Where a continuation seen so many times goes among those of its state (rows first..size), or -1."""
    for index in range(first):
        if found[index, 0] == token:
            return -1  # a longer match proposed it
    if size - first < PER_STATE:
        return size
    least = first
    for index in range(first + 1, size):
        if found[index, 2] < found[least, 2]:
            least = index
    return least if found[least, 2] < times else -1


@njit(nogil=True, cache=True)
def _retrieved(nodes: Int32Array, state: int, min_match: int, found: Int64Array) -> int:
    """Write (token, class, 0) of the continuations of state and its suffixes to found; returns how many."""
    size = 0
    while state != 0 and nodes[state, trie.DEPTH] >= min_match and size < ENOUGH:
        total = 0
        first = size
        seen = 0
        child = int(nodes[state, trie.CHILD])
        while child != 0 and seen < SCAN:
            times = int(nodes[child, trie.COUNT])
            total += times
            seen += 1
            token = int(nodes[child, trie.TOKEN])
            place = _place(found, first, size, token, times) if times > 0 else -1
            if place >= 0:
                found[place, 0] = token
                found[place, 2] = times
                size = max(size, place + 1)
            child = int(nodes[child, trie.NEXT])
        for index in range(first, size):
            found[index, 1] = retrieval_class(int(nodes[state, trie.DEPTH]), int(found[index, 2]), total)
        state = int(nodes[state, trie.FAIL])
    for index in range(size):
        found[index, 2] = 0
    return size


@njit(nogil=True, cache=True)
def _copied(ids: Int32Array, probs: Float32Array, row: int, kind: int, found: Int64Array, size: int) -> int:
    """Add the successors in a row: they join what was retrieved, or become candidates of their own."""
    for rank in range(ids.shape[1]):
        token = int(ids[row, rank])
        if token < 0:
            break
        label = copy_class(kind, probs[row, rank])
        place = -1
        for index in range(size):
            if found[index, 0] == token:
                place = index
        if place < 0:
            if size == MOST:
                break
            place = size
            size += 1
            found[place, 0] = token
            found[place, 1] = 0
        found[place, 2] = label
    return size


@njit(nogil=True, cache=True)
def _ranks_below(heap: Int64Array, keys: Float32Array, a: int, b: int) -> bool:
    """Whether entry a ranks below entry b: by probability, then by age."""
    if keys[a] != keys[b]:
        return bool(keys[a] < keys[b])
    return bool(heap[a, SERIAL] > heap[b, SERIAL])


@njit(nogil=True, cache=True)
def _swap(heap: Int64Array, keys: Float32Array, a: int, b: int) -> None:
    for column in range(HEAP_COLUMNS):
        held = heap[a, column]
        heap[a, column] = heap[b, column]
        heap[b, column] = held
    weight = keys[a]
    keys[a] = keys[b]
    keys[b] = weight


@njit(nogil=True, cache=True)
def _push(heap: Int64Array, keys: Float32Array, size: int) -> None:
    """Let the entry in row `size` (1-based, the last) rise to its place."""
    row = size
    while row > 1 and _ranks_below(heap, keys, row // 2, row):
        _swap(heap, keys, row, row // 2)
        row //= 2


@njit(nogil=True, cache=True)
def _pop(heap: Int64Array, keys: Float32Array, size: int) -> None:
    """Move the best of `size` entries to row `size`."""
    _swap(heap, keys, 1, size)
    row = 1
    while 2 * row < size:
        child = 2 * row
        if child + 1 < size and _ranks_below(heap, keys, child, child + 1):
            child += 1
        if not _ranks_below(heap, keys, row, child):
            break
        _swap(heap, keys, row, child)
        row = child


@njit(nogil=True, cache=True)
def _candidates(
    trie_arrays: TrieArrays,
    layers: Layers,
    prior: Row,
    state: int,
    before: int,
    here: int,
    found: Int64Array,
) -> int:
    """Write what may follow the tokens (before, here) to found: token, retrieval class, copy class; returns how many.

    Of the rows that know the context the most specific speaks: two tokens before one, the session before the warm layer, and
    the model's prior last.
    """
    size = _retrieved(trie_arrays[0], state, MIN_MATCH, found)
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


@njit(nogil=True, cache=True)
def grow(
    trie_arrays: TrieArrays,
    layers: Layers,
    prior: Row,
    table: Float32Array,
    scale: Float32Array,
    tree: Int64Array,
    chances: Float32Array,
    heap: Int64Array,
    heap_keys: Float32Array,
    found: Int64Array,
    state: int,
    previous: int,
    token: int,
    budget: int,
    max_depth: int,
    floor: float,
    ends: Ends,
) -> int:
    """Grow the best tree of at most `budget` nodes below the root token; returns the number of nodes.

    trie_arrays: nodes, keys and values of the automaton. layers: keys, values, ids and probabilities of the rows by two tokens
    (session, warm) and by one (session, warm). prior: ids and probabilities [n, k] of the tokens below n. state: automaton node
    of the context. previous: the token before the root, or -1. chances[i]: estimated probability that node i is accepted.
    Candidates below `floor` are left out, and so is what stands below one of `ends`. scale float32 [2]: the session's own
    correction for retrieved and copied candidates.
    """
    tree[0, :] = 0
    tree[0, TOKEN] = token
    tree[0, PARENT] = -1
    tree[0, SOURCE] = TARGET
    tree[0, STATE] = state
    chances[0] = 1.0
    size = 0
    serial = 0
    made = 1
    node = 0
    while True:
        if tree[node, DEPTH] < max_depth and (node == 0 or not is_end(ends, int(tree[node, TOKEN]))):
            before = previous if node == 0 else int(tree[tree[node, PARENT], TOKEN])
            many = _candidates(trie_arrays, layers, prior, int(tree[node, STATE]), before, int(tree[node, TOKEN]), found)
            for index in range(many):
                retrieval = int(found[index, 1])
                chance = table[retrieval, found[index, 2]] * (scale[0] if retrieval > 0 else scale[1])
                chance = chances[node] * min(chance, 0.995)
                if chance >= floor and may_stand(ends, int(found[index, 0]), int(tree[node, DEPTH]) + 1):
                    serial += 1
                    size += 1
                    heap[size, OWNER] = node
                    heap[size, CANDIDATE] = found[index, 0]
                    heap[size, KIND_RETRIEVAL] = retrieval
                    heap[size, KIND_COPY] = found[index, 2]
                    heap[size, SERIAL] = serial
                    heap_keys[size] = chance
                    _push(heap, heap_keys, size)
        if size == 0 or made == budget:
            return made
        _pop(heap, heap_keys, size)
        node = made
        made += 1
        _graft(tree, heap, size, node)
        chances[node] = heap_keys[size]
        size -= 1
        if made < budget:
            parent_state = int(tree[tree[node, PARENT], STATE])
            tree[node, STATE] = follow(trie_arrays[0], trie_arrays[1], trie_arrays[2], parent_state, int(tree[node, TOKEN]))


@njit(nogil=True, cache=True)
def _graft(tree: Int64Array, heap: Int64Array, row: int, node: int) -> None:
    """Make row `node` of the tree out of a heap entry."""
    parent = int(heap[row, OWNER])
    tree[node, TOKEN] = heap[row, CANDIDATE]
    tree[node, PARENT] = parent
    tree[node, DEPTH] = tree[parent, DEPTH] + 1
    tree[node, RETRIEVAL] = heap[row, KIND_RETRIEVAL]
    tree[node, COPY] = heap[row, KIND_COPY]
    tree[node, SOURCE] = FROM_RETRIEVAL if heap[row, KIND_RETRIEVAL] > 0 else FROM_COPY


@njit(nogil=True, cache=True)
def judge(
    tree: Int64Array,
    size: int,
    path: Int64Array,
    truth: int,
    counts: Float64Array,
    alone: Float64Array,
    table: Float32Array,
    record: Float32Array,
) -> None:
    """Count what became of each candidate whose parent was accepted, in a tree of which `size` nodes were verified.

    path: accepted nodes, root first. truth: the target's token after the last of them. record float32 [2, 2]: expected and
    real hits of the session's retrieved and copied candidates, decayed.
    """
    for step in range(path.size):
        parent = int(path[step])
        right = int(tree[path[step + 1], TOKEN]) if step + 1 < path.size else truth
        for node in range(parent + 1, size):
            if tree[node, PARENT] == parent:
                retrieval = int(tree[node, RETRIEVAL])
                copy = int(tree[node, COPY])
                hit = int(tree[node, TOKEN]) == right
                kind = 0 if retrieval > 0 else 1
                record[kind, 0] = record[kind, 0] * 0.98 + table[retrieval, copy]
                record[kind, 1] = record[kind, 1] * 0.98 + (1.0 if hit else 0.0)
                count(counts, alone, table, retrieval, copy, hit)
