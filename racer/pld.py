"""Prompt lookup decoding: copy what followed an earlier occurrence of the latest tokens (PLD, as transformers does it)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numba import njit

from racer.automaton import MAX_TOKEN, as_tokens
from racer.drafter import DrafterState, Tokens
from racer.ends import NO_ENDS, Ends, is_end, may_stand
from racer.tree import DraftTree, Int64Array, Source

FIRST_ROOM = 1024  # tokens


@njit(nogil=True, cache=True)
def first_match(context: Int64Array, length: int, longest: int) -> tuple[int, int]:
    """Where the first earlier occurrence of the longest repeated suffix ends, and the suffix's length; (0, 0): none.

    The suffix has at most `longest` tokens and is no shorter than one. One pass: the first occurrence of each length is kept.
    """
    best_end = 0
    best_size = 0
    last = length - 1
    for end in range(last):
        size = 0
        while size < longest and size <= end and context[end - size] == context[last - size]:
            size += 1
        if size > best_size:
            best_end = end
            best_size = size
            if size == longest:
                break
    return best_end, best_size


@njit(nogil=True, cache=True)
def _until_end(tokens: Int64Array, ends: Ends) -> int:
    """How many of a chain's tokens may be drafted: up to the first that ends the answer, or before one that may not stand."""
    for index in range(tokens.size):
        if not may_stand(ends, int(tokens[index]), index + 1):
            return index
        if is_end(ends, int(tokens[index])):
            return index + 1
    return int(tokens.size)


class PldDrafter:
    """Prompt lookup decoding, a peer to compare with.

    Of the suffixes of the context with at most max_ngram tokens, the longest that also occurs earlier is taken, and of its
    occurrences the FIRST one, as in transformers' PromptLookupCandidateGenerator. The draft is a chain of the (at most) `copy`
    tokens behind it; it ends where the context or the answer ends. Not for use from two threads at a time.
    """

    learns = False
    state = DrafterState()

    def __init__(self, max_ngram: int = 3, copy: int = 10) -> None:
        if max_ngram < 1 or copy < 1:
            raise ValueError(f"max_ngram and copy must be at least 1, got {max_ngram} and {copy}")
        self.max_ngram = max_ngram
        self.copy = copy
        self._context: Int64Array = np.empty(FIRST_ROOM, np.int64)
        self._length = 0

    def observe(self, tokens: Tokens) -> None:
        """Append tokens [m], ids in [0, 2**31); the last one is the next root."""
        flat = as_tokens(tokens)
        if flat.size and (int(flat.min()) < 0 or int(flat.max()) >= MAX_TOKEN):
            raise ValueError("token ids must be in [0, 2**31)")
        end = self._length + flat.size
        if end > self._context.size:
            grown = np.empty(max(end, 2 * self._context.size), np.int64)
            grown[: self._length] = self._context[: self._length]
            self._context = grown
        self._context[self._length : end] = flat
        self._length = end

    def learn(
        self,
        tokens: npt.NDArray[np.integer],
        top_ids: npt.NDArray[np.integer],
        top_probs: npt.NDArray[np.floating],
        previous: npt.NDArray[np.integer] | None = None,
    ) -> None:
        pass

    def propose(self, budget: int, max_depth: int, floor: float = 0.0, ends: Ends = NO_ENDS) -> DraftTree:
        """A chain of at most min(copy, budget - 1, max_depth) tokens. Raises ValueError when no token has been observed."""
        if self._length == 0:
            raise ValueError("observe at least one token before proposing")
        root = int(self._context[self._length - 1])
        room = min(self.copy, budget - 1, max_depth)
        if room < 1:
            return DraftTree.root_only(root)
        end, size = first_match(self._context, self._length, self.max_ngram)
        if size == 0:
            return DraftTree.root_only(root)
        copied = self._context[end + 1 : min(end + 1 + room, self._length)]
        copied = copied[: _until_end(copied, ends)]
        count = copied.size + 1
        source = np.full(count, Source.RETRIEVAL, np.uint8)
        source[0] = Source.TARGET
        confidence = np.full(count, size / self.max_ngram, np.float32)
        confidence[0] = 1.0
        return DraftTree(
            np.concatenate([[root], copied]).astype(np.int64),
            np.arange(-1, count - 1, dtype=np.int32),
            np.arange(count, dtype=np.int32),
            source,
            confidence,
        )

    def judge(self, verified: int, path: Sequence[int], truth: int) -> None:
        pass

    @property
    def nbytes(self) -> int:
        """Size of the session's state in bytes."""
        return int(self._context.nbytes)
