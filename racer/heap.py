"""The candidates of a tree under construction, best first: a bounded binary max-heap in one flat array.

heap is [2 * keep + 1, 3], of int64 or float64, whichever holds the keys exactly. Rows 1.. are candidates: the two parts of
their key, compared in this order, and the caller's number for them. Row 0 is the header: the number of candidates, and a key,
the floor.

Where more candidates may come than there are rows, but at most `keep` are ever wanted, `push_bounded` cuts a full heap to its
best `keep`. The last of them becomes the floor: what ranks below it is refused from then on. Memory and time are bounded, and
the best `keep` are exact.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from numba import njit

Heap = npt.NDArray[Any]  # int64 or float64

COLUMNS = 3
ITEM = 2
SIZE = 0  # in row 0
FLOOR = 1  # in row 0, with the column after it


@njit(nogil=True, cache=True)
def clear(heap: Heap) -> None:
    heap[0, :] = 0
    heap[0, FLOOR] = -1  # below all keys, which are not negative in their first part


@njit(nogil=True, cache=True)
def _below(heap: Heap, row: int, other: int) -> bool:
    """Whether row ranks below other."""
    if heap[row, 0] != heap[other, 0]:
        return bool(heap[row, 0] < heap[other, 0])
    return bool(heap[row, 1] < heap[other, 1])


@njit(nogil=True, cache=True)
def _swap(heap: Heap, row: int, other: int) -> None:
    for column in range(COLUMNS):
        held = heap[row, column]
        heap[row, column] = heap[other, column]
        heap[other, column] = held


@njit(nogil=True, cache=True)
def pop(heap: Heap) -> int:
    """Move the best candidate to the row just behind the heap and return that row."""
    size = int(heap[0, SIZE])
    _swap(heap, 1, size)
    heap[0, SIZE] = size - 1
    row = 1
    while 2 * row < size:
        child = 2 * row
        if child + 1 < size and _below(heap, child, child + 1):
            child += 1
        if not _below(heap, row, child):
            break
        _swap(heap, row, child)
        row = child
    return size


@njit(nogil=True, cache=True)
def _cut(heap: Heap, keep: int) -> None:
    """Reduce a full heap to its best `keep` candidates and set the floor."""
    for _ in range(keep):
        pop(heap)
    # The best now lie behind the heap, the best one last. In falling order they are a heap.
    for row in range(1, keep + 1):
        _swap(heap, row, 2 * keep + 1 - row)
    heap[0, SIZE] = keep
    heap[0, FLOOR] = heap[keep, 0]
    heap[0, FLOOR + 1] = heap[keep, 1]


@njit(nogil=True, cache=True)
def push(heap: Heap, major: float, minor: float, item: float) -> None:
    """Add a candidate with the key (major, minor) to a heap that is not full."""
    row = int(heap[0, SIZE]) + 1
    heap[0, SIZE] = row
    heap[row, 0] = major
    heap[row, 1] = minor
    heap[row, ITEM] = item
    while row > 1 and _below(heap, row // 2, row):
        _swap(heap, row, row // 2)
        row //= 2


@njit(nogil=True, cache=True)
def push_bounded(heap: Heap, major: float, minor: float, item: float) -> None:
    """Add a candidate with the key (major, minor) to a heap that may be full; nothing happens if it ranks below the floor."""
    if major < heap[0, FLOOR] or (major == heap[0, FLOOR] and minor < heap[0, FLOOR + 1]):
        return
    if heap[0, SIZE] == heap.shape[0] - 1:
        _cut(heap, heap.shape[0] // 2)
    push(heap, major, minor, item)
