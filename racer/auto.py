"""The drafter of policy `auto`: one learnt order over the candidates of all sources (see racer.auto_tree)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from racer.acceptance import Acceptance
from racer.auto_tree import grow, judge
from racer.automaton import NgramAutomaton, as_tokens
from racer.candidates import MOST
from racer.copy_logits import CopyLogitTable
from racer.drafter import Drafter, DrafterState, RacerConfig, Tokens
from racer.limits import NO_ENDS, Ends
from racer.tree import DraftTree, Float32Array, Int32Array
from racer.workspace import Workspace

SESSION_PRIOR = 8.0  # expected hits by which a session's own record is damped


class WarmLayer:
    """What sessions of one API key share: copy-logit rows by one and by two tokens of context."""

    def __init__(self, k: int, rows: int) -> None:
        self.rows = CopyLogitTable(k, rows)
        self.pairs = CopyLogitTable(k, rows)


class Shared:
    """What all sessions of an engine share; it contains nothing of their texts.

    prior_ids int32 [n, k], prior_probs float32 [n, k]: the target's successors of each token below n without context, -1 where
    they are not known.
    """

    def __init__(self, prior_ids: Int32Array | None = None, prior_probs: Float32Array | None = None) -> None:
        self.acceptance = Acceptance.initial()
        self.prior_ids: Int32Array = np.full((0, 1), -1, np.int32) if prior_ids is None else prior_ids
        self.prior_probs: Float32Array = np.zeros((0, 1), np.float32) if prior_probs is None else prior_probs


class AutoDrafter(Drafter):
    """RACER with learnt ranking. `propose` returns nodes in falling order of estimated acceptance, its confidence."""

    learns = True

    def __init__(self, config: RacerConfig, warm: WarmLayer | None = None, shared: Shared | None = None) -> None:
        super().__init__()
        self.config = config
        shared = shared or Shared()
        self.acceptance = shared.acceptance
        self._prior = (shared.prior_ids, shared.prior_probs)
        self.automaton = NgramAutomaton(config.ngram, config.nodes)
        self.rows = CopyLogitTable(config.breadth, config.table_rows, warm.rows if warm else None)
        self.pairs = CopyLogitTable(config.breadth, config.table_rows, warm.pairs if warm else None)
        self._warm = warm or WarmLayer(config.breadth, 1)
        self._previous = -1
        self._record: Float32Array = np.ones((2, 2), np.float32) * SESSION_PRIOR
        self._proposed = 0
        self._workspace = Workspace(keep=MOST // 2, dtype=np.float64)

    def observe(self, tokens: Tokens) -> None:
        flat = as_tokens(tokens)
        if flat.size:
            self.automaton.append(flat)
            self._previous = int(flat[-2]) if flat.size > 1 else self._root
            super().observe(flat)

    def learn(
        self,
        tokens: npt.NDArray[np.integer],
        top_ids: npt.NDArray[np.integer],
        top_probs: npt.NDArray[np.floating],
        previous: npt.NDArray[np.integer] | None = None,
    ) -> None:
        """Write the copy-logit rows, by one token and by two; later rows win."""
        self.rows.write(tokens, top_ids, top_probs)
        if previous is not None:
            known = previous >= 0
            self.pairs.write_pairs(previous[known], tokens[known], top_ids[known], top_probs[known])

    def propose(self, budget: int, max_depth: int, floor: float = 0.0, ends: Ends = NO_ENDS) -> DraftTree:
        """The best tree; candidates that are accepted with a probability below `floor` are left out."""
        root = self._checked_root()
        self._proposed = 0
        if budget < 2 or max_depth < 1:
            return DraftTree.root_only(root)
        draft, trie = tuple(self._workspace.reserve(budget)), tuple(self.automaton.trie)
        layers = tuple(self.pairs.rows), tuple(self._warm.pairs.rows), tuple(self.rows.rows), tuple(self._warm.rows.rows)
        ranking, limits = (self.acceptance.table, self._scale(), floor), (budget, max_depth, tuple(ends))
        self._proposed = grow(draft, trie, layers, self._prior, ranking, root, self._previous, limits)
        return self._workspace.harvest(self._proposed)

    def judge(self, verified: int, path: Sequence[int], truth: int) -> None:
        """Learn which of the verified candidates the target accepted."""
        if self._proposed > 1:
            tree, size = self._workspace.draft.tree, min(verified, self._proposed)
            judge(tree, size, np.asarray(path, np.int64), truth, tuple(self.acceptance), self._record)

    def _scale(self) -> Float32Array:
        """float32 [2]: how this session's retrieved and copied candidates do in relation to the estimates."""
        ratio = (self._record[:, 1] + SESSION_PRIOR) / (self._record[:, 0] + SESSION_PRIOR)
        return np.clip(ratio, 0.3, 2.0).astype(np.float32)

    @property
    def state(self) -> DrafterState:
        return DrafterState(len(self.automaton), self.automaton.evictions, len(self.rows) + len(self.pairs))

    @property
    def nbytes(self) -> int:
        return self.automaton.nbytes + self.rows.nbytes + self.pairs.nbytes + self._workspace.nbytes
