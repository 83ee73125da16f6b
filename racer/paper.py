"""The drafter of policy `paper` and its ablations: RACER as published."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from racer.automaton import NgramAutomaton, as_tokens
from racer.copy_logits import CopyLogitTable
from racer.copy_tree import fill
from racer.drafter import Drafter, DrafterState, RacerConfig, Tokens
from racer.limits import NO_ENDS, Ends
from racer.retrieval import LOW16, retrieve
from racer.tree import DraftTree
from racer.workspace import Workspace


class RacerDrafter(Drafter):
    """RACER: exact n-grams of the session, and the target's own latest successors per token.

    base is the copy-logit layer shared by several sessions: it is read where the session has no row of its own, and written
    along with the session's.
    """

    learns = True

    def __init__(self, config: RacerConfig | None = None, base: CopyLogitTable | None = None) -> None:
        super().__init__()
        self.config = config or RacerConfig()
        self.automaton = NgramAutomaton(self.config.ngram, self.config.nodes)
        self.table = CopyLogitTable(self.config.breadth, self.config.table_rows, base)
        self._base = base if base is not None else CopyLogitTable(self.config.breadth, 1)
        self._workspace = Workspace(keep=self.config.ngram)
        self._last: tuple[npt.NDArray[np.integer], npt.NDArray[np.floating]] | None = None

    def observe(self, tokens: Tokens) -> None:
        flat = as_tokens(tokens)
        self.automaton.append(flat)
        super().observe(flat)

    def learn(
        self,
        tokens: npt.NDArray[np.integer],
        top_ids: npt.NDArray[np.integer],
        top_probs: npt.NDArray[np.floating],
        previous: npt.NDArray[np.integer] | None = None,
    ) -> None:
        """Write the copy-logit rows; later rows win."""
        self.table.write(tokens, top_ids, top_probs)
        if self.config.policy == "last_logit" and len(tokens):
            self._last = (top_ids[-1], top_probs[-1])

    def propose(self, budget: int, max_depth: int, floor: float = 0.0, ends: Ends = NO_ENDS) -> DraftTree:
        """The merged tree (RACER, section 3)."""
        root = self._checked_root()
        budget, max_depth = min(budget, LOW16), min(max_depth, LOW16 - 1)
        if budget < 2 or max_depth < 1:
            return DraftTree.root_only(root)
        draft, last = tuple(self._workspace.reserve(budget)), tuple(ends)
        limits = self._retrieval_budget(budget), max_depth, last
        trie = self.automaton.trie
        count = retrieve(draft, trie.nodes, trie.cursors, root, self.config.min_match, limits)
        if self._wants_copy_logits(count):
            if self.config.policy == "half":
                budget = min(budget, count + budget // 2)
            layers = tuple(self._table(root).rows), tuple(self._base.rows)
            count = fill(draft, count, layers, (budget, max_depth, last))
        return self._workspace.harvest(count)

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

    def _table(self, root: int) -> CopyLogitTable:
        """The table to draft from; for last-logit one in which the latest row belongs to the root and to all its successors."""
        if self._last is None:
            return self.table
        ids, probs = self._last
        tokens = np.concatenate([[root], ids[ids >= 0]]).astype(np.int64)
        table = CopyLogitTable(self.config.breadth, len(tokens))
        table.write(tokens, np.tile(ids, (len(tokens), 1)), np.tile(probs, (len(tokens), 1)))
        return table

    @property
    def state(self) -> DrafterState:
        return DrafterState(len(self.automaton), self.automaton.evictions, len(self.table))

    @property
    def nbytes(self) -> int:
        return self.automaton.nbytes + self.table.nbytes + self._workspace.nbytes
