"""The limits of a draft tree: its size, its depth, and the tokens that end an answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numba import njit

from racer.tree import DEPTH, TOKEN, Int64Array


class Ends(NamedTuple):
    """Tokens that end an answer. Nothing is drafted below one, since no token after it could be kept.

    ids int64 [m], ascending. least_depth: depth in the draft from which they may stand; 0 or 1: anywhere. The root is not part
    of the draft, so it may have children whatever its token.
    """

    ids: Int64Array
    least_depth: int = 0


class Limits(NamedTuple):
    """budget: most nodes, root included. max_depth: greatest depth of a node."""

    budget: int
    max_depth: int
    ends: Ends


def ends_of(tokens: Iterable[int], least_depth: int = 0) -> Ends:
    return Ends(np.array(sorted(set(tokens)), np.int64), least_depth)


NO_ENDS = ends_of(())


@njit(nogil=True, cache=True)
def named_limits(limits: Limits) -> Limits:
    """Limits from plain tuples (see racer.workspace)."""
    return Limits(limits[0], limits[1], Ends(limits[2][0], limits[2][1]))


@njit(nogil=True, cache=True)
def is_end(ends: Ends, token: int) -> bool:
    low = 0
    high = ends.ids.size
    while low < high:
        middle = (low + high) // 2
        if ends.ids[middle] < token:
            low = middle + 1
        else:
            high = middle
    return bool(low < ends.ids.size and ends.ids[low] == token)


@njit(nogil=True, cache=True)
def may_stand(ends: Ends, token: int, depth: int) -> bool:
    """Whether the token may be drafted at this depth."""
    return depth >= ends.least_depth or not is_end(ends, token)


@njit(nogil=True, cache=True)
def may_extend(limits: Limits, tree: Int64Array, node: int) -> bool:
    """Whether children of the node may be drafted."""
    return tree[node, DEPTH] < limits.max_depth and (node == 0 or not is_end(limits.ends, int(tree[node, TOKEN])))
