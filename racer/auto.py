"""The drafter of `policy: auto`: one learnt order over the candidates of all sources (see racer.auto_tree)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from racer.acceptance import Acceptance
from racer.auto_tree import COLUMNS, DEPTH, HEAP_COLUMNS, MOST, PARENT, SOURCE, TOKEN, Layers, grow, judge
from racer.automaton import NgramAutomaton, as_tokens
from racer.copy_logits import CopyLogitTable
from racer.drafter import DrafterState, RacerConfig, Tokens, _checked_root
from racer.ends import NO_ENDS, Ends
from racer.tree import DraftTree, Float32Array, Int32Array, Int64Array

SESSION_PRIOR = 8.0  # expected hits that a session's own record must outweigh


class WarmLayer:
    """What sessions of one API key share: copy-logit rows by one and by two tokens of context."""

    def __init__(self, k: int, rows: int) -> None:
        self.rows = CopyLogitTable(k, rows)
        self.pairs = CopyLogitTable(k, rows)


class Shared:
    """What all sessions of an engine share; nothing in it tells of anyone's text.

    prior_ids int32 [n, k], prior_probs float32 [n, k]: the target's successors of each token below n taken alone, -1 where
    they are not known.
    """

    def __init__(self, prior_ids: Int32Array | None = None, prior_probs: Float32Array | None = None) -> None:
        self.acceptance = Acceptance()
        self.prior_ids: Int32Array = np.full((0, 1), -1, np.int32) if prior_ids is None else prior_ids
        self.prior_probs: Float32Array = np.zeros((0, 1), np.float32) if prior_probs is None else prior_probs


class AutoDrafter:
    """RACER with learnt ranking. `propose` returns nodes in falling order of estimated acceptance, its confidence."""

    learns = True

    def __init__(self, config: RacerConfig, warm: WarmLayer | None = None, shared: Shared | None = None) -> None:
        self.config = config
        shared = shared or Shared()
        self.acceptance = shared.acceptance
        self._prior = (shared.prior_ids, shared.prior_probs)
        self.automaton = NgramAutomaton(config.ngram, config.nodes)
        self.rows = CopyLogitTable(config.breadth, config.table_rows, warm.rows if warm else None)
        self.pairs = CopyLogitTable(config.breadth, config.table_rows, warm.pairs if warm else None)
        self._warm = warm or WarmLayer(config.breadth, 1)
        self._root = self._previous = -1
        self._record: Float32Array = np.ones((2, 2), np.float32) * SESSION_PRIOR
        self._proposed = 0
        self._reserve(64)

    def _reserve(self, budget: int) -> None:
        self._tree: Int64Array = np.zeros((budget, COLUMNS), np.int64)
        self._chances: Float32Array = np.zeros(budget, np.float32)
        self._heap: Int64Array = np.zeros((MOST * budget + 1, HEAP_COLUMNS), np.int64)
        self._heap_keys: Float32Array = np.zeros(MOST * budget + 1, np.float32)
        self._found: Int64Array = np.zeros((MOST, 3), np.int64)

    def observe(self, tokens: Tokens) -> None:
        """Append tokens [m] to the automaton; the last one is the next root."""
        flat = as_tokens(tokens)
        if flat.size:
            self.automaton.append(flat)
            self._previous = int(flat[-2]) if flat.size > 1 else self._root
            self._root = int(flat[-1])

    def learn(
        self,
        tokens: npt.NDArray[np.integer],
        top_ids: npt.NDArray[np.integer],
        top_probs: npt.NDArray[np.floating],
        previous: npt.NDArray[np.integer] | None = None,
    ) -> None:
        """Write the rows of tokens [n]; previous [n] are the tokens before them, negative where there is none."""
        self.rows.write(tokens, top_ids, top_probs)
        if previous is not None:
            known = previous >= 0
            self.pairs.write_pairs(previous[known], tokens[known], top_ids[known], top_probs[known])

    def propose(self, budget: int, max_depth: int, floor: float = 0.0, ends: Ends = NO_ENDS) -> DraftTree:
        """The best tree; candidates that are accepted with a probability below `floor` are left out."""
        root = _checked_root(self._root)
        self._proposed = 0
        if budget < 2 or max_depth < 1:
            return DraftTree.root_only(root)
        if budget > self._tree.shape[0]:
            self._reserve(budget)
        automaton = self.automaton
        deepest = min(automaton.n, automaton.tokens_seen)
        count = grow(
            *((automaton.nodes, automaton.keys, automaton.values), self._layers(), self._prior),
            *(self.acceptance.table, self._scale(), self._tree, self._chances, self._heap, self._heap_keys, self._found),
            *(int(automaton.cursors[deepest]), self._previous, root, budget, max_depth, floor, ends),
        )
        self._proposed = count
        tree = self._tree[:count]
        return DraftTree(
            tree[:, TOKEN].copy(),
            tree[:, PARENT].astype(np.int32),
            tree[:, DEPTH].astype(np.int32),
            tree[:, SOURCE].astype(np.uint8),
            self._chances[:count].copy(),
        )

    def judge(self, verified: int, path: Sequence[int], truth: int) -> None:
        """Learn from the last proposal: its first `verified` nodes were checked, `path` was accepted, `truth` came next."""
        if self._proposed > 1:
            learnt = self.acceptance
            judge(
                *(self._tree, min(verified, self._proposed), np.asarray(path, np.int64), truth),
                *(learnt.counts, learnt.alone, learnt.table, self._record),
            )

    def _layers(self) -> Layers:
        tables = (self.pairs, self._warm.pairs, self.rows, self._warm.rows)
        first, second, third, fourth = ((table.keys, table.values, table.ids, table.probs) for table in tables)
        return first, second, third, fourth

    def _scale(self) -> Float32Array:
        """How much better or worse than estimated this session's candidates do: retrieved ones, copied ones."""
        ratio = (self._record[:, 1] + SESSION_PRIOR) / (self._record[:, 0] + SESSION_PRIOR)
        return np.clip(ratio, 0.3, 2.0).astype(np.float32)

    @property
    def state(self) -> DrafterState:
        return DrafterState(len(self.automaton), self.automaton.evictions, len(self.rows) + len(self.pairs))

    @property
    def nbytes(self) -> int:
        """Bytes of the session's state and of the scratch, without the shared layer."""
        scratch = (self._tree, self._chances, self._heap, self._heap_keys, self._found)
        return self.automaton.nbytes + self.rows.nbytes + self.pairs.nbytes + sum(array.nbytes for array in scratch)
