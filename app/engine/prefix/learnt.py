"""Rows of successors that a drafter learns from a prompt."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class LearntRows(NamedTuple):
    """What a drafter learns from a chunk of a prompt, as Drafter.learn takes it. first: place of the chunk in the prompt."""

    first: int
    tokens: np.ndarray
    top_ids: np.ndarray
    top_probs: np.ndarray
    previous: np.ndarray

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)

    def since(self, place: int) -> LearntRows:
        """Without what stands before a place of the prompt."""
        skip = max(0, place - self.first)
        return LearntRows(self.first + skip, *(part[skip:] for part in self[1:]))
