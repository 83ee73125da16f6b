"""Copy-logit tree: breadth-first through the table's rows by the breadth rule of RACER, Eq. 3.

Child number j (from 0) of a node with breadth b has breadth max(1, b >> (j + (0 if the node is the root else 1))), and a node
of breadth b has b children. With k = 8 and rows of new tokens only, 64 nodes lie in layers of 1, 8, 19, 24, 12.
"""

from __future__ import annotations

from numba import njit

from racer.copy_logits import Rows, find_row
from racer.limits import Limits, is_end, may_stand, named_limits
from racer.tree import DEPTH, TOKEN, Source
from racer.workspace import BREADTH, COPY_CONFIDENCE, QUEUE, TINY, Draft, bounded, child_of, graft

COPY_LOGIT = int(Source.COPY_LOGIT)


@njit(nogil=True, cache=True)
def fill(draft: Draft, count: int, layers: tuple[Rows, Rows], limits: Limits) -> int:
    """Fill a tree of `count` nodes up to the budget; returns the number of nodes.

    layers: of the session and the base. A node that is there already takes no slot and keeps its source; the search goes on
    below it. Only nodes that the copy-logit tree reaches are expanded. Tokens without a row are leaves, and so are tokens that
    end the answer.
    """
    draft, limits = Draft(*draft), named_limits(limits)
    layers = (Rows(*layers[0]), Rows(*layers[1]))
    tree, weights = draft.tree, draft.weights
    tree[0, BREADTH] = layers[0].ids.shape[1]
    tree[0, QUEUE] = 0
    reached = 1
    done = 0
    while done < reached and count < limits.budget:
        node = int(tree[done, QUEUE])
        done += 1
        if tree[node, DEPTH] >= limits.max_depth:
            break  # breadth-first: all that follow are as deep
        token = int(tree[node, TOKEN])
        if node != 0 and is_end(limits.ends, token):
            continue
        layer, row = find_row(layers, token)
        if row < 0:
            continue
        rows = layers[layer]
        breadth = int(tree[node, BREADTH])
        halved = 0 if node == 0 else 1
        for rank in range(breadth):
            token = int(rows.ids[row, rank])
            if token < 0:
                break
            if not may_stand(limits.ends, token, int(tree[node, DEPTH]) + 1):
                continue
            confidence = max(float(weights[node, COPY_CONFIDENCE]) * float(rows.probs[row, rank]), TINY)
            child = child_of(tree, node, token)
            if child == 0:
                if count == limits.budget:
                    break
                child = count
                count += 1
                graft(draft, child, node, token, COPY_LOGIT, bounded(confidence))
            if tree[child, BREADTH] == 0:
                tree[child, BREADTH] = max(1, breadth >> (rank + halved))
                weights[child, COPY_CONFIDENCE] = confidence
                tree[reached, QUEUE] = child
                reached += 1
    return count
