"""Copy-logit tree: breadth-first through the table's rows by the breadth rule of RACER, Eq. 3.

Child number j (from 0) of a node with breadth b has breadth max(1, b >> (j + (0 if the node is the root else 1))), and a node
of breadth b has b children. With k = 8 and fresh tokens 64 nodes lie in layers of 1, 8, 19, 24, 12.
"""

from __future__ import annotations

from numba import njit

from racer import workspace as ws
from racer.ends import Ends, is_end, may_stand
from racer.hashing import find
from racer.tree import Float32Array, Int32Array, Int64Array, Source
from racer.workspace import child_of, graft

COPY_LOGIT = int(Source.COPY_LOGIT)


@njit(nogil=True, cache=True)
def fill(
    tree: Int64Array,
    weights: Float32Array,
    count: int,
    budget: int,
    max_depth: int,
    ends: Ends,
    keys: Int64Array,
    values: Int32Array,
    ids: Int32Array,
    probs: Float32Array,
    base_keys: Int64Array,
    base_values: Int32Array,
    base_ids: Int32Array,
    base_probs: Float32Array,
) -> int:
    """Fill a tree of `count` nodes up to `budget` and return the number of nodes.

    A node that stands there already takes no slot and keeps its source; the search goes on below it. Only nodes that the
    copy-logit tree reaches are expanded. A token without a row, in the session layer and in the base, is a leaf, and
    so is one that ends the answer.
    """
    breadth = ids.shape[1]
    tree[0, ws.BREADTH] = breadth
    tree[0, ws.QUEUE] = 0
    reached = 1
    done = 0
    while done < reached and count < budget:
        node = int(tree[done, ws.QUEUE])
        done += 1
        if tree[node, ws.DEPTH] >= max_depth:
            break  # breadth-first: all that follow are as deep
        token = int(tree[node, ws.TOKEN])
        if node != 0 and is_end(ends, token):
            continue
        row = find(keys, values, token)
        successors = ids
        likelihoods = probs
        if row < 0:
            row = find(base_keys, base_values, token)
            if row < 0:
                continue
            successors = base_ids
            likelihoods = base_probs
        breadth = int(tree[node, ws.BREADTH])
        halved = 0 if node == 0 else 1
        for rank in range(breadth):
            token = int(successors[row, rank])
            if token < 0:
                break
            if not may_stand(ends, token, int(tree[node, ws.DEPTH]) + 1):
                continue
            confidence = max(float(weights[node, ws.COPY_CONFIDENCE]) * float(likelihoods[row, rank]), ws.TINY)
            child = child_of(tree, node, token)
            if child == 0:
                if count == budget:
                    break
                child = count
                count += 1
                graft(tree, weights, child, node, token, COPY_LOGIT, confidence)
            if tree[child, ws.BREADTH] == 0:
                tree[child, ws.BREADTH] = max(1, breadth >> (rank + halved))
                weights[child, ws.COPY_CONFIDENCE] = confidence
                tree[reached, ws.QUEUE] = child
                reached += 1
    return count
