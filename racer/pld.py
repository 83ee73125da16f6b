"""Prompt lookup decoding (PLD, as in transformers): copy what followed an earlier occurrence of the latest tokens."""

from __future__ import annotations

import numpy as np
from numba import njit

from racer.automaton import MAX_TOKEN, as_tokens
from racer.drafter import Drafter, Tokens
from racer.limits import NO_ENDS, Ends, Limits, may_extend, may_stand, named_limits
from racer.tree import DraftTree, Int64Array, Source
from racer.workspace import Draft, Workspace, graft, plant

FIRST_ROOM = 1024  # tokens
RETRIEVAL = int(Source.RETRIEVAL)


@njit(nogil=True, cache=True)
def first_match(context: Int64Array, length: int, longest: int) -> tuple[int, int]:
    """The end of the first earlier occurrence of the longest repeated suffix, and the suffix's length; (0, 0) for none.

    The suffix has 1 to `longest` tokens. One pass is enough, since the first occurrence of each length is kept.
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
def copy_chain(draft: Draft, context: Int64Array, length: int, first: int, confidence: float, limits: Limits) -> int:
    """Plant the last token of the context and add what stands from index `first` on as a chain; returns the number of nodes.

    The chain ends where the context or the answer ends.
    """
    draft, limits = Draft(*draft), named_limits(limits)
    plant(draft, int(context[length - 1]))
    count = 1
    for index in range(first, length):
        token = int(context[index])
        if count >= limits.budget or not may_extend(limits, draft.tree, count - 1) or not may_stand(limits.ends, token, count):
            break
        graft(draft, count, count - 1, token, RETRIEVAL, confidence)
        count += 1
    return count


class PldDrafter(Drafter):
    """Prompt lookup decoding, to compare with.

    Of the suffixes of the context with at most max_ngram tokens, it takes the longest that also occurs earlier, and of its
    occurrences the first, as transformers' PromptLookupCandidateGenerator does. The draft is a chain of at most `copy` tokens
    after that occurrence.
    """

    def __init__(self, max_ngram: int = 3, copy: int = 10) -> None:
        if max_ngram < 1 or copy < 1:
            raise ValueError(f"max_ngram and copy must be at least 1, got {max_ngram} and {copy}")
        super().__init__()
        self.max_ngram = max_ngram
        self.copy = copy
        self._context: Int64Array = np.empty(FIRST_ROOM, np.int64)
        self._length = 0
        self._workspace = Workspace(copy + 1)

    def observe(self, tokens: Tokens) -> None:
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
        super().observe(flat)

    def propose(self, budget: int, max_depth: int, floor: float = 0.0, ends: Ends = NO_ENDS) -> DraftTree:
        """A chain of at most min(copy, budget - 1, max_depth) tokens."""
        root = self._checked_root()
        if budget < 2 or max_depth < 1:
            return DraftTree.root_only(root)
        end, size = first_match(self._context, self._length, self.max_ngram)
        if size == 0:
            return DraftTree.root_only(root)
        draft, limits = tuple(self._workspace.draft), (min(self.copy + 1, budget), max_depth, tuple(ends))
        count = copy_chain(draft, self._context, self._length, end + 1, size / self.max_ngram, limits)
        return self._workspace.harvest(count)

    @property
    def nbytes(self) -> int:
        return int(self._context.nbytes) + self._workspace.nbytes
