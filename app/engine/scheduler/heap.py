"""Memory that the C library keeps after it was freed: handed back to the system from time to time."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

EVERY = 10.0  # seconds from one pass to the next, at least


def c_library_trim() -> Callable[[], object]:
    """What returns all whole free pages of the heap to the system; nothing where the C library cannot (only glibc can)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    return (lambda: None) if trim is None else (lambda: trim(ctypes.c_size_t(0)))


class HeapTrim:
    """Trims after sessions ended, not more often than `every` seconds.

    Logits, KV slabs and drafting state come and go in sizes of 1 to 30 MB beside objects of a few bytes that stay: glibc
    keeps such holes, and resident memory would rise for thousands of requests.
    """

    def __init__(
        self,
        trim: Callable[[], object] | None = None,
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trim = c_library_trim() if trim is None else trim
        self._every = every
        self._clock = clock
        self._last = clock()
        self._ended = False

    def session_ended(self) -> None:
        """There may be something to give back."""
        self._ended = True

    def trim_if_due(self) -> None:
        """Takes some milliseconds when it is."""
        if self._ended and self._clock() - self._last >= self._every:
            self._ended = False
            self._trim()
            self._last = self._clock()
