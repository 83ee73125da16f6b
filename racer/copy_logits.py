"""Copy-logit table: token id -> the target's latest top-k successors and their probabilities (RACER, section 3)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from racer.automaton import MAX_TOKEN, as_tokens
from racer.hashing import delete, find, insert, make_hash
from racer.lru import NEWER, make_links, oldest, push_newest, touch, unlink
from racer.tree import Float32Array, Int32Array, Int64Array

FIRST_ROWS = 512
ABSENT = -1  # id at the end of rows with fewer than k successors


class Rows(NamedTuple):
    """A table as drafting reads it.

    keys, values: hash from a token, or from `previous << 32 | token`, to a row (racer.hashing). ids int32 [rows + 1, k] and
    probs float32 [rows + 1, k]: successors and their probabilities, best first; row 0 is unused.
    """

    keys: Int64Array
    values: Int32Array
    ids: Int32Array
    probs: Float32Array


@njit(nogil=True, cache=True)
def find_row(layers: tuple[Rows, ...], key: int) -> tuple[int, int]:
    """The first layer with a row for the key, and the row; the row is -1 where no layer has one."""
    for index in range(len(layers)):
        row = int(find(layers[index].keys, layers[index].values, key))
        if row >= 0:
            return index, row
    return 0, -1


@njit(nogil=True, cache=True)
def write_rows(
    rows: Rows, links: Int32Array, owners: Int64Array, used: int, keys: Int64Array, ids: Int32Array, probs: Float32Array
) -> int:
    """Write one row per key, in order. Returns the number of rows then in use.

    links: recency of the rows (racer.lru). owners int64 [rows + 1]: the key of each row.
    """
    slots, values, row_ids, row_probs = rows
    for index in range(keys.size):
        key = int(keys[index])
        row = find(slots, values, key)
        if row >= 0:
            touch(links, row)
        else:
            if used < row_ids.shape[0] - 1:
                used += 1
                row = used
            else:
                row = oldest(links)
                unlink(links, row)
                delete(slots, values, int(owners[row]))
            owners[row] = key
            insert(slots, values, key, row)
            push_newest(links, row)
        row_ids[row, :] = ids[index]
        row_probs[row, :] = probs[index]
    return used


class CopyLogitTable:
    """At most `capacity` rows; the row written longest ago is evicted first. A token never seen has no row.

    base: a layer that is read where this one has no row, and written along with it. Rows are allocated as needed; 3.4 MB at
    32,768 rows of 8. One writer at a time.
    """

    def __init__(self, k: int = 8, capacity: int = 32_768, base: CopyLogitTable | None = None) -> None:
        if k < 1 or capacity < 1:
            raise ValueError(f"k and capacity must be at least 1, got {k} and {capacity}")
        if base is not None and base.k != k:
            raise ValueError(f"the base layer has rows of {base.k}, not {k}")
        self.k: int = k
        self.capacity = capacity
        self.base = base
        self._used = 0
        self._allocate(min(capacity, FIRST_ROWS))

    def _allocate(self, rows: int) -> None:
        ids: Int32Array = np.full((rows + 1, self.k), ABSENT, np.int32)
        self.rows = Rows(*make_hash(rows), ids, np.zeros((rows + 1, self.k), np.float32))
        self._links = make_links(rows)
        self._owners: Int64Array = np.zeros(rows + 1, np.int64)

    def _make_room(self, more: int) -> None:
        """Grow, by doubling, until `more` rows fit or the capacity is reached."""
        allocated = len(self.rows.ids) - 1
        if self._used + more <= allocated or allocated == self.capacity:
            return
        while allocated < min(self._used + more, self.capacity):
            allocated = min(2 * allocated, self.capacity)
        rows, links, owners, used = self.rows, self._links, self._owners, self._used
        self._allocate(allocated)
        if used:
            order = np.empty(used, np.int64)
            row = oldest(links)
            for index in range(used):
                order[index] = row
                row = int(links[row, NEWER])
            self._used = 0
            self._write(owners[order], rows.ids[order], rows.probs[order])

    def _write(self, keys: Int64Array, ids: Int32Array, probs: Float32Array) -> None:
        self._used = int(write_rows(tuple(self.rows), self._links, self._owners, self._used, keys, ids, probs))

    def write(self, tokens: npt.NDArray[np.integer], ids: npt.NDArray[np.integer], probs: npt.NDArray[np.floating]) -> None:
        """Store ids [n, m] and probs [n, m], best first, as the successors of tokens [n]; later rows win.

        The first k columns are kept; with fewer columns, or with negative ids, the row is shorter. Raises ValueError if the
        shapes do not agree or token ids are outside [0, 2**31).
        """
        flat = as_tokens(tokens)
        if ids.ndim != 2 or ids.shape != probs.shape or ids.shape[0] != flat.size:
            raise ValueError(f"shapes do not agree: tokens {flat.shape}, ids {ids.shape}, probs {probs.shape}")
        if flat.size == 0:
            return
        if int(flat.min()) < 0 or int(flat.max()) >= MAX_TOKEN:
            raise ValueError("token ids must be in [0, 2**31)")
        self._write_keys(flat, ids, probs)

    def _write_keys(self, keys: Int64Array, ids: npt.NDArray[np.integer], probs: npt.NDArray[np.floating]) -> None:
        if keys.size == 0:
            return
        width = min(self.k, ids.shape[1])
        row_ids: Int32Array = np.full((keys.size, self.k), ABSENT, np.int32)
        row_probs: Float32Array = np.zeros((keys.size, self.k), np.float32)
        row_ids[:, :width] = ids[:, :width]
        row_probs[:, :width] = probs[:, :width]
        self._store(keys, row_ids, row_probs)

    def write_pairs(
        self,
        previous: npt.NDArray[np.integer],
        tokens: npt.NDArray[np.integer],
        ids: npt.NDArray[np.integer],
        probs: npt.NDArray[np.floating],
    ) -> None:
        """Store rows as the successors of two tokens: previous [n] and tokens [n], both in [0, 2**31)."""
        self._write_keys((as_tokens(previous) << 32) | as_tokens(tokens), ids, probs)

    def _store(self, keys: Int64Array, ids: Int32Array, probs: Float32Array) -> None:
        self._make_room(keys.size)
        self._write(keys, ids, probs)
        if self.base is not None:
            self.base._store(keys, ids, probs)

    def __len__(self) -> int:
        """Rows of this layer."""
        return self._used

    @property
    def nbytes(self) -> int:
        """Size of this layer's state in bytes."""
        return sum(array.nbytes for array in (*self.rows, self._links, self._owners))
