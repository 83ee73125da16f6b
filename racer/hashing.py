"""Open-addressing hash from int64 keys to int32 values, in two flat arrays.

Linear probing, a power-of-two size of at least twice the capacity, and deletion by backward shift, so that there are no
tombstones and a lookup stays short however often entries come and go. Keys are `high << 32 | low` with both halves in
[0, 2**31); all arithmetic stays below 2**63, so compiled and plain Python agree.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from racer.tree import Int32Array, Int64Array

EMPTY = -1


def make_hash(capacity: int) -> tuple[Int64Array, Int32Array]:
    """Keys int64[m] and values int32[m] of an empty hash for at most `capacity` entries."""
    size = 4
    while size < 2 * capacity:
        size *= 2
    return np.full(size, EMPTY, np.int64), np.zeros(size, np.int32)


@njit(nogil=True, cache=True)
def home(key: int, mask: int) -> int:
    """The slot where the probe for key begins."""
    mixed = (key & 0x7FFFFFFF) * 0x2545F491 + (key >> 32) * 0x19D699A5
    return (mixed ^ (mixed >> 29)) & mask


@njit(nogil=True, cache=True)
def find(keys: Int64Array, values: Int32Array, key: int) -> int:
    """The value stored for key, or -1."""
    mask = keys.size - 1
    slot = home(key, mask)
    while keys[slot] != EMPTY:
        if keys[slot] == key:
            return int(values[slot])
        slot = (slot + 1) & mask
    return -1


@njit(nogil=True, cache=True)
def insert(keys: Int64Array, values: Int32Array, key: int, value: int) -> None:
    """Store value for a key that is not there yet."""
    mask = keys.size - 1
    slot = home(key, mask)
    while keys[slot] != EMPTY:
        slot = (slot + 1) & mask
    keys[slot] = key
    values[slot] = value


@njit(nogil=True, cache=True)
def copy_entries(keys: Int64Array, values: Int32Array, new_keys: Int64Array, new_values: Int32Array) -> None:
    """Store all entries of one hash in another that holds none of them."""
    for slot in range(keys.size):
        if keys[slot] != EMPTY:
            insert(new_keys, new_values, int(keys[slot]), int(values[slot]))


@njit(nogil=True, cache=True)
def delete(keys: Int64Array, values: Int32Array, key: int) -> None:
    """Remove a key that is there; later entries of the same run move up, so no probe is ever cut short."""
    mask = keys.size - 1
    hole = home(key, mask)
    while keys[hole] != key:
        hole = (hole + 1) & mask
    probe = hole
    while True:
        probe = (probe + 1) & mask
        if keys[probe] == EMPTY:
            break
        start = home(int(keys[probe]), mask)
        # The entry may fill the hole unless its own run begins behind the hole.
        if ((probe - start) & mask) >= ((probe - hole) & mask):
            keys[hole] = keys[probe]
            values[hole] = values[probe]
            hole = probe
    keys[hole] = EMPTY
