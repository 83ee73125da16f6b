"""Copy-logit table: token id -> the target's latest top-k successors and their probabilities (RACER, section 3)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from racer.automaton import MAX_TOKEN, as_tokens
from racer.hashing import delete, find, insert, make_hash
from racer.lru import make_links, oldest, push_newest, touch, unlink
from racer.tree import Float32Array, Int32Array, Int64Array

FIRST_ROWS = 512
ABSENT = -1  # id of a successor that is not there, in rows shorter than k


@njit(nogil=True, cache=True)
def write_rows(
    keys: Int64Array,
    values: Int32Array,
    links: Int32Array,
    owners: Int64Array,
    ids: Int32Array,
    probs: Float32Array,
    rows: int,
    tokens: Int64Array,
    new_ids: Int32Array,
    new_probs: Float32Array,
) -> int:
    """Write one row per token, in order. Returns the number of rows then in use."""
    for index in range(tokens.size):
        token = int(tokens[index])
        row = find(keys, values, token)
        if row >= 0:
            touch(links, row)
        else:
            if rows < ids.shape[0] - 1:
                rows += 1
                row = rows
            else:
                row = oldest(links)
                unlink(links, row)
                delete(keys, values, int(owners[row]))
            owners[row] = token
            insert(keys, values, token, row)
            push_newest(links, row)
        ids[row, :] = new_ids[index]
        probs[row, :] = new_probs[index]
    return rows


class CopyLogitTable:
    """At most `capacity` rows; the row written longest ago leaves first. A token never seen has no row.

    With a base, a lookup that finds nothing here goes on there, and a write goes to both. Rows are allocated as they are
    needed: ids int32[rows + 1, k] and probs float32[rows + 1, k], row 0 unused; 3.4 MB at 32,768 rows of 8. One writer at a
    time.
    """

    def __init__(self, k: int = 8, capacity: int = 32_768, base: CopyLogitTable | None = None) -> None:
        if k < 1 or capacity < 1:
            raise ValueError(f"k and capacity must be at least 1, got {k} and {capacity}")
        if base is not None and base.k != k:
            raise ValueError(f"the base layer has rows of {base.k}, not {k}")
        self.k: int = k
        self.capacity = capacity
        self.base = base
        self._rows = 0
        self._allocate(min(capacity, FIRST_ROWS))

    def _allocate(self, rows: int) -> None:
        self.keys, self.values = make_hash(rows)
        self.links = make_links(rows)
        self.owners: Int64Array = np.zeros(rows + 1, np.int64)
        self.ids: Int32Array = np.full((rows + 1, self.k), ABSENT, np.int32)
        self.probs: Float32Array = np.zeros((rows + 1, self.k), np.float32)

    def _make_room(self, more: int) -> None:
        """Grow, by doubling, until `more` rows fit or the capacity is reached."""
        allocated = self.ids.shape[0] - 1
        if self._rows + more <= allocated or allocated == self.capacity:
            return
        while allocated < min(self._rows + more, self.capacity):
            allocated = min(2 * allocated, self.capacity)
        owners, ids, probs, links, used = self.owners, self.ids, self.probs, self.links, self._rows
        self._allocate(allocated)
        if used:
            order = np.empty(used, np.int64)
            row = oldest(links)
            for index in range(used):
                order[index] = row
                row = int(links[row, 0])
            self._rows = 0
            self._write(owners[order], ids[order], probs[order])

    def _write(self, tokens: Int64Array, ids: Int32Array, probs: Float32Array) -> None:
        self._rows = write_rows(
            self.keys, self.values, self.links, self.owners, self.ids, self.probs, self._rows, tokens, ids, probs
        )

    def write(self, tokens: npt.NDArray[np.integer], ids: npt.NDArray[np.integer], probs: npt.NDArray[np.floating]) -> None:
        """Store ids [n, m] and probs [n, m], best first, as the successors of tokens [n]; later rows win.

        The first k columns are kept; with fewer than k, or with negative ids, the row is shorter. Raises ValueError on shapes
        that do not agree and on token ids outside [0, 2**31).
        """
        flat = as_tokens(tokens)
        if ids.ndim != 2 or ids.shape != probs.shape or ids.shape[0] != flat.size:
            raise ValueError(f"shapes do not agree: tokens {flat.shape}, ids {ids.shape}, probs {probs.shape}")
        if flat.size == 0:
            return
        if int(flat.min()) < 0 or int(flat.max()) >= MAX_TOKEN:
            raise ValueError("token ids must be in [0, 2**31)")
        self._write_keys(flat, ids, probs)

    def _write_keys(self, flat: Int64Array, ids: npt.NDArray[np.integer], probs: npt.NDArray[np.floating]) -> None:
        if flat.size == 0:
            return
        width = min(self.k, ids.shape[1])
        row_ids: Int32Array = np.full((flat.size, self.k), ABSENT, np.int32)
        row_probs: Float32Array = np.zeros((flat.size, self.k), np.float32)
        row_ids[:, :width] = ids[:, :width]
        row_probs[:, :width] = probs[:, :width]
        self._store(flat, row_ids, row_probs)

    def write_pairs(
        self,
        previous: npt.NDArray[np.integer],
        tokens: npt.NDArray[np.integer],
        ids: npt.NDArray[np.integer],
        probs: npt.NDArray[np.floating],
    ) -> None:
        """Store rows as the successors of a token in its context: keys are (previous [n], tokens [n]), both in [0, 2**31)."""
        self._write_keys((as_tokens(previous) << 32) | as_tokens(tokens), ids, probs)

    def _store(self, tokens: Int64Array, ids: Int32Array, probs: Float32Array) -> None:
        self._make_room(tokens.size)
        self._write(tokens, ids, probs)
        if self.base is not None:
            self.base._store(tokens, ids, probs)

    def row(self, token: int) -> tuple[Int32Array, Float32Array] | None:
        """Successor ids int32[m] and probabilities float32[m] of token, m <= k, or None when it was never seen."""
        row = find(self.keys, self.values, token) if 0 <= token < MAX_TOKEN else -1
        if row >= 0:
            present = self.ids[row] >= 0
            return self.ids[row][present], self.probs[row][present]
        return self.base.row(token) if self.base is not None else None

    def __len__(self) -> int:
        """Rows of this layer."""
        return self._rows

    @property
    def nbytes(self) -> int:
        """Size of this layer's state in bytes."""
        arrays = (self.keys, self.values, self.links, self.owners, self.ids, self.probs)
        return sum(array.nbytes for array in arrays)
