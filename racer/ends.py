"""The tokens that end an answer: nothing can be kept below one, so nothing is drafted there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numba import njit

from racer.tree import Int64Array


class Ends(NamedTuple):
    """ids int64 [m], ascending. least_depth: depth in the draft from which one of them may stand; 0 or 1: anywhere.

    The root is no draft, so whatever it is, there may be drafts below it.
    """

    ids: Int64Array
    least_depth: int = 0


def ends_of(tokens: Iterable[int], least_depth: int = 0) -> Ends:
    return Ends(np.array(sorted(set(tokens)), np.int64), least_depth)


NO_ENDS = ends_of(())


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
