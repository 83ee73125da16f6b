"""Drafters: the state of one session that proposes a tree of next tokens, and its settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from racer.automaton import MAX_NGRAM, MAX_TOKEN, least_capacity
from racer.limits import NO_ENDS, Ends
from racer.tree import DraftTree

Tokens = npt.NDArray[np.integer] | Sequence[int]
Policy = Literal["auto", "paper", "retrieval", "copy_logit", "last_logit", "half", "fallback", "pld", "recycling"]
MAX_BREADTH = 10
PAPER_NODES = 10_000
CONTEXT = 32_768  # tokens; used where the greatest length of a text is not given


class DrafterState(NamedTuple):
    """How much a drafter holds of its session. evictions: automaton nodes evicted so far."""

    automaton_nodes: int = 0
    evictions: int = 0
    copy_logit_rows: int = 0


class Drafter(ABC):
    """The drafting state of one session. A subclass defines `propose`; by default it keeps the root alone and learns nothing.

    learns: whether `learn` uses the target's rows; where it does not, their probabilities need not be computed. Not for use
    from two threads at a time, except for `state`.
    """

    learns = False

    def __init__(self) -> None:
        self._root = -1

    @property
    def state(self) -> DrafterState:
        """Its size; may be read from any thread."""
        return DrafterState()

    @property
    def nbytes(self) -> int:
        """Bytes that are freed with it: state and scratch, without layers that sessions share."""
        return 0

    def observe(self, tokens: Tokens) -> None:
        """Take in tokens [m] of the session, prompt or output, ids in [0, 2**31); the last one is the next root."""
        if len(tokens):
            self._root = int(tokens[-1])

    def learn(  # noqa: B027 - optional
        self,
        tokens: npt.NDArray[np.integer],
        top_ids: npt.NDArray[np.integer],
        top_probs: npt.NDArray[np.floating],
        previous: npt.NDArray[np.integer] | None = None,
    ) -> None:
        """Take in the target's top successors [n, k], best first, of tokens [n]; the caller puts the accepted path last.

        previous [n]: the token before each, negative where there is none.
        """

    @abstractmethod
    def propose(self, budget: int, max_depth: int, floor: float = 0.0, ends: Ends = NO_ENDS) -> DraftTree:
        """A tree below the last observed token: at most `budget` nodes, root included, and at most `max_depth` deep.

        A drafter that estimates acceptance leaves out candidates less likely than `floor`. ends: the tokens that end the
        answer; a node that carries one has no children. Raises ValueError if no token has been observed.
        """

    def judge(self, verified: int, path: Sequence[int], truth: int) -> None:  # noqa: B027 - optional
        """Take in the result of the last proposal: `verified` nodes were checked, `path` was accepted, then `truth` came."""

    def _checked_root(self) -> int:
        if not 0 <= self._root < MAX_TOKEN:
            raise ValueError("observe at least one token before proposing")
        return self._root


class NullDrafter(Drafter):
    """Proposes nothing: plain decoding."""

    def propose(self, budget: int, max_depth: int, floor: float = 0.0, ends: Ends = NO_ENDS) -> DraftTree:
        return DraftTree.root_only(self._checked_root())


@dataclass(frozen=True, slots=True)
class RacerConfig:
    """Settings of the RACER drafter; unless noted otherwise the default sizes are the paper's.

    policy: `auto` ranks the candidates of all sources by learnt acceptance. `paper` is retrieval first, then copy-logit in the
    remaining slots. Ablations of it: `retrieval` or `copy_logit` alone, `half` (half of the slots for each; slots that one
    leaves unused stay empty), `fallback` (copy-logit only when retrieval finds nothing), `last_logit` (the row that chose the
    root in place of the copy-logit row). Methods to compare with: `pld` and `recycling`. See racer.factory.

    automaton_nodes: limit for a session's n-grams. By default the paper's 10,000, and under `auto` as many as a text of
    `context` tokens can need, so that none of it is forgotten. They are allocated as the text grows.
    """

    ngram: int = 10
    automaton_nodes: int | None = None
    context: int | None = None
    min_match: int = 2
    breadth: int = 8
    table_rows: int = 32_768
    policy: Policy = "auto"

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise ValueError(f"policy must be one of {', '.join(get_args(Policy))}, got {self.policy!r}")
        if not 1 <= self.ngram <= MAX_NGRAM:
            raise ValueError(f"ngram must be between 1 and {MAX_NGRAM}, got {self.ngram}")
        least = least_capacity(self.ngram)
        if self.automaton_nodes is not None and self.automaton_nodes < least:
            raise ValueError(
                f"automaton_nodes must be at least {least} for an ngram of {self.ngram}, got {self.automaton_nodes}"
            )
        if self.context is not None and self.context < 1:
            raise ValueError(f"context must be at least 1 token, got {self.context}")
        if not 1 <= self.min_match <= self.ngram:
            raise ValueError(f"min_match must be between 1 and ngram ({self.ngram}), got {self.min_match}")
        if not 1 <= self.breadth <= MAX_BREADTH:
            raise ValueError(f"breadth must be between 1 and {MAX_BREADTH}, got {self.breadth}")

    @property
    def nodes(self) -> int:
        """The limit of automaton nodes for a session."""
        if self.automaton_nodes is not None:
            return self.automaton_nodes
        if self.policy != "auto":
            return PAPER_NODES
        return min(max(least_capacity(self.ngram), self.ngram * (self.context or CONTEXT)), MAX_TOKEN - 1)
