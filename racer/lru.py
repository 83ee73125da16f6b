"""Recency order of entries 1..m as a circular doubly linked list in one flat array.

links is int32[m + 1, 2]; entry 0 is the sentinel. links[v, NEWER] and links[v, OLDER] are the neighbours of v, so the newest
entry is links[0, OLDER] and the oldest is links[0, NEWER]. An empty list is the sentinel pointing at itself.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from racer.tree import Int32Array

NEWER = 0
OLDER = 1


def make_links(capacity: int) -> Int32Array:
    """An empty list for entries 1..capacity."""
    return np.zeros((capacity + 1, 2), np.int32)


@njit(nogil=True, cache=True)
def oldest(links: Int32Array) -> int:
    """The entry touched longest ago, or 0 when the list is empty."""
    return int(links[0, NEWER])


@njit(nogil=True, cache=True)
def unlink(links: Int32Array, entry: int) -> None:
    """Take entry out of the list."""
    newer = links[entry, NEWER]
    older = links[entry, OLDER]
    links[newer, OLDER] = older
    links[older, NEWER] = newer


@njit(nogil=True, cache=True)
def push_newest(links: Int32Array, entry: int) -> None:
    """Put an entry that is not in the list at its newest end."""
    first = links[0, OLDER]
    links[entry, NEWER] = 0
    links[entry, OLDER] = first
    links[first, NEWER] = entry
    links[0, OLDER] = entry


@njit(nogil=True, cache=True)
def touch(links: Int32Array, entry: int) -> None:
    """Make an entry of the list its newest."""
    if links[0, OLDER] != entry:
        unlink(links, entry)
        push_newest(links, entry)
