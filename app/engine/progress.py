"""How far the reading of a prompt has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from app.engine.events import TokenLogprob


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


@dataclass(slots=True)
class PromptProgress:
    """What has been done with the tokens of a prompt; each number counts from its beginning.

    learnt_rows and scores are for the other choices of the same prompt; without any they stay empty.
    """

    observed: int = 0  # taken in by the drafter
    learnt: int = 0  # their successors are known to the drafter
    counted: int = 0  # reported as read
    logprobs: list[TokenLogprob | None] = field(default_factory=list)  # where asked for; sent with the first token
    learnt_rows: list[LearntRows] = field(default_factory=list)
    scores: list[TokenLogprob | None] = field(default_factory=list)
