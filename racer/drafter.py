"""Drafters: what proposes a tree of next tokens for one session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
import numpy.typing as npt

from racer.automaton import MAX_NGRAM, MAX_TOKEN, NgramAutomaton, as_tokens, least_capacity
from racer.copy_logits import CopyLogitTable
from racer.copy_tree import fill
from racer.ends import NO_ENDS, Ends
from racer.retrieval import LOW16, retrieve
from racer.tree import DraftTree
from racer.workspace import Workspace

Tokens = npt.NDArray[np.integer] | Sequence[int]
Policy = Literal["auto", "paper", "retrieval", "copy_logit", "last_logit", "half", "fallback", "pld", "recycling"]
MAX_BREADTH = 10
PAPER_NODES = 10_000
CONTEXT = 32_768  # tokens, where nobody says how long texts may get


class DrafterState(NamedTuple):
    """What a drafter holds of its session. evictions: automaton nodes that had to make room so far."""

    automaton_nodes: int = 0
    evictions: int = 0
    copy_logit_rows: int = 0


class Drafter(Protocol):
    """The per-session state of a drafting method. learns: whether `learn` has any use for the target's rows."""

    learns: bool

    @property
    def state(self) -> DrafterState:
        """Its size; may be read from any thread."""

    @property
    def nbytes(self) -> int:
        """Bytes that end with it: its state and its scratch, without the layers that sessions share."""

    def observe(self, tokens: Tokens) -> None:
        """Take in tokens [m] of the session, prompt or output; the last one is the next root."""

    def learn(
        self,
        tokens: npt.NDArray[np.integer],
        top_ids: npt.NDArray[np.integer],
        top_probs: npt.NDArray[np.floating],
        previous: npt.NDArray[np.integer] | None = None,
    ) -> None:
        """Take in the target's top successors [n, k] of tokens [n]; the caller puts the accepted path last.

        previous [n]: the token before each, negative where there is none.
        """

    def propose(self, budget: int, max_depth: int, floor: float = 0.0, ends: Ends = NO_ENDS) -> DraftTree:
        """A tree below the last observed token: at most `budget` nodes, root included, and at most `max_depth` deep.

        A drafter that estimates acceptance leaves out what it finds less likely than `floor`. ends: the tokens that end the
        answer; a node that carries one has no children.
        """

    def judge(self, verified: int, path: Sequence[int], truth: int) -> None:
        """Hear what became of the last proposal: `verified` nodes were checked, `path` was accepted, then `truth` came."""


@dataclass(frozen=True, slots=True)
class RacerConfig:
    """Settings of the RACER drafter; sizes are the paper's where nothing else is said.

    policy: `auto` ranks the candidates of all sources by learnt acceptance. `paper` is retrieval first, then copy-logit in the
    slots left. Ablations of it: `retrieval` or `copy_logit` alone, `half` (half of the slots for each; what one leaves over
    stays empty), `fallback` (copy-logit only when retrieval finds nothing), `last_logit` (the row that chose the root in place
    of the copy-logit row). Peers: `pld` and `recycling`. See racer.factory.

    automaton_nodes: of a session's n-grams; without it the paper's 10,000, under `auto` as many as a text of `context` tokens
    can need, so that nothing in it is forgotten. They are allocated as the text grows.
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
        """Automaton nodes that a session may have."""
        if self.automaton_nodes is not None:
            return self.automaton_nodes
        if self.policy != "auto":
            return PAPER_NODES
        return min(max(least_capacity(self.ngram), self.ngram * (self.context or CONTEXT)), MAX_TOKEN - 1)


class NullDrafter:
    """Proposes nothing: plain decoding."""

    learns = False
    state = DrafterState()
    nbytes = 0

    def __init__(self) -> None:
        self._root = -1

    def observe(self, tokens: Tokens) -> None:
        if len(tokens):
            self._root = int(tokens[-1])

    def learn(
        self,
        tokens: npt.NDArray[np.integer],
        top_ids: npt.NDArray[np.integer],
        top_probs: npt.NDArray[np.floating],
        previous: npt.NDArray[np.integer] | None = None,
    ) -> None:
        pass

    def propose(self, budget: int, max_depth: int, floor: float = 0.0, ends: Ends = NO_ENDS) -> DraftTree:
        return DraftTree.root_only(_checked_root(self._root))

    def judge(self, verified: int, path: Sequence[int], truth: int) -> None:
        pass


class RacerDrafter:
    """RACER: exact n-grams of the session, and the target's own latest successors per token.

    base is the copy-logit layer shared by several sessions: it is read where the session has no row of its own, and
    written along. Not for use from two threads at a time.
    """

    learns = True

    def __init__(self, config: RacerConfig | None = None, base: CopyLogitTable | None = None) -> None:
        self.config = config or RacerConfig()
        self.automaton = NgramAutomaton(self.config.ngram, self.config.nodes)
        self.table = CopyLogitTable(self.config.breadth, self.config.table_rows, base)
        self._base = base if base is not None else CopyLogitTable(self.config.breadth, 1)
        self._workspace = Workspace(self.config.ngram)
        self._last: tuple[npt.NDArray[np.integer], npt.NDArray[np.floating]] | None = None
        self._root = -1

    def observe(self, tokens: Tokens) -> None:
        """Append tokens [m], ids in [0, 2**31), to the automaton; the last one is the next root."""
        flat = as_tokens(tokens)
        if flat.size:
            self.automaton.append(flat)
            self._root = int(flat[-1])

    def learn(
        self,
        tokens: npt.NDArray[np.integer],
        top_ids: npt.NDArray[np.integer],
        top_probs: npt.NDArray[np.floating],
        previous: npt.NDArray[np.integer] | None = None,
    ) -> None:
        """Write the copy-logit rows top_ids [n, k] and top_probs [n, k] of tokens [n]; later rows win."""
        self.table.write(tokens, top_ids, top_probs)
        if self.config.policy == "last_logit" and len(tokens):
            self._last = (top_ids[-1], top_probs[-1])

    def judge(self, verified: int, path: Sequence[int], truth: int) -> None:
        pass

    def propose(self, budget: int, max_depth: int, floor: float = 0.0, ends: Ends = NO_ENDS) -> DraftTree:
        """The merged tree (RACER, section 3). Raises ValueError when no token has been observed."""
        root = _checked_root(self._root)
        budget = min(budget, LOW16)
        max_depth = min(max_depth, LOW16 - 1)
        if budget < 2 or max_depth < 1:
            return DraftTree.root_only(root)
        space = self._workspace
        space.reserve(budget)
        count = retrieve(
            self.automaton.nodes,
            self.automaton.cursors,
            space.tree,
            space.weights,
            space.heap,
            root,
            self._retrieval_budget(budget),
            max_depth,
            self.config.min_match,
            ends,
        )
        if self._wants_copy_logits(count):
            table, base = self._rows(root), self._base
            layers = (table.keys, table.values, table.ids, table.probs, base.keys, base.values, base.ids, base.probs)
            if self.config.policy == "half":
                budget = min(budget, count + budget // 2)
            count = fill(space.tree, space.weights, count, budget, max_depth, ends, *layers)
        return space.harvest(count)

    def _rows(self, root: int) -> CopyLogitTable:
        """The table to draft from; for last-logit one where the latest row stands for the root and all that may follow it."""
        if self._last is None:
            return self.table
        ids, probs = self._last
        tokens = np.concatenate([[root], ids[ids >= 0]]).astype(np.int64)
        table = CopyLogitTable(self.config.breadth, len(tokens))
        table.write(tokens, np.tile(ids, (len(tokens), 1)), np.tile(probs, (len(tokens), 1)))
        return table

    def _retrieval_budget(self, budget: int) -> int:
        """Nodes, root included, that retrieval may take."""
        if self.config.policy == "copy_logit":
            return 1
        if self.config.policy == "half":
            return 1 + (budget - 1) // 2
        return budget

    def _wants_copy_logits(self, count: int) -> bool:
        if self.config.policy == "retrieval":
            return False
        return self.config.policy != "fallback" or count == 1

    @property
    def state(self) -> DrafterState:
        return DrafterState(len(self.automaton), self.automaton.evictions, len(self.table))

    @property
    def nbytes(self) -> int:
        """Bytes of the session's state and of the scratch, without the shared base layer."""
        return self.automaton.nbytes + self.table.nbytes + self._workspace.nbytes


def _checked_root(root: int) -> int:
    if not 0 <= root < MAX_TOKEN:
        raise ValueError("observe at least one token before proposing")
    return root
