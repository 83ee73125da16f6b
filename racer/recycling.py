"""Token Recycling (arXiv 2408.08696): a fixed template of rank paths, filled from each token's latest top-k successors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from numba import njit

from racer import workspace as ws
from racer.automaton import MAX_TOKEN
from racer.copy_logits import CopyLogitTable
from racer.drafter import DrafterState, Tokens
from racer.ends import NO_ENDS, Ends, is_end, may_stand
from racer.hashing import find
from racer.tree import DraftTree, Float32Array, Int32Array, Int64Array, Source
from racer.workspace import Workspace, graft, plant

LAYERS = (8, 21, 25, 15, 8, 3)  # the paper's template: 80 nodes in 6 levels
MAX_RANKS = 8
COPY_LOGIT = int(Source.COPY_LOGIT)
TARGET = int(Source.TARGET)


@cache
def template(ranks: int = MAX_RANKS) -> tuple[Int64Array, Int64Array]:
    """Parents int64[n] and ranks int64[n] of the template's nodes, level by level, row 0 the root.

    The paper gives the sizes of the levels, not a rule for the paths. Here a level holds the most plausible children of the
    level before it, the chance of the successor of rank r (from 1) taken as falling like a power of r (Zipf): then the paths of
    a level stand in the order of the product of their ranks, whatever the power. Ties: the smaller path first. Fewer ranks
    than 8 make levels smaller where not enough paths exist.
    """
    parents, taken = [-1], [0]
    level: list[tuple[tuple[int, ...], int]] = [((), 0)]  # (path of ranks from 1, node)
    for size in LAYERS:
        paths = [((*path, rank), node) for path, node in level for rank in range(1, ranks + 1)]
        paths.sort(key=lambda entry: (int(np.prod(entry[0])), entry[0]))
        level = []
        for path, parent in paths[:size]:
            level.append((path, len(parents)))
            parents.append(parent)
            taken.append(path[-1] - 1)
    return np.array(parents, np.int64), np.array(taken, np.int64)


@njit(nogil=True, cache=True)
def fill_template(
    tree: Int64Array,
    weights: Float32Array,
    root: int,
    parents: Int64Array,
    ranks: Int64Array,
    places: Int64Array,
    max_depth: int,
    ends: Ends,
    keys: Int64Array,
    values: Int32Array,
    ids: Int32Array,
    probs: Float32Array,
    base_keys: Int64Array,
    base_values: Int32Array,
    base_ids: Int32Array,
    base_probs: Float32Array,
) -> int:
    """Grow the tree of a template below root and return its number of nodes; what would stand below one of `ends` is left out.

    places int64[n] is scratch: the row of each template node, -1 where the table has no successor of that rank; nodes below
    such a one are left out.
    """
    plant(tree, weights, root, TARGET)
    places[0] = 0
    count = 1
    for entry in range(1, parents.size):
        places[entry] = -1
        parent = int(places[parents[entry]])
        if parent < 0 or tree[parent, ws.DEPTH] >= max_depth:
            continue
        token = int(tree[parent, ws.TOKEN])
        if parent != 0 and is_end(ends, token):
            continue
        row = find(keys, values, token)
        successors = ids
        likelihoods = probs
        if row < 0:
            row = find(base_keys, base_values, token)
            if row < 0:
                continue
            successors = base_ids
            likelihoods = base_probs
        rank = int(ranks[entry])
        token = int(successors[row, rank])
        if token < 0 or not may_stand(ends, token, int(tree[parent, ws.DEPTH]) + 1):
            continue
        confidence = float(weights[parent, ws.CONFIDENCE]) * float(likelihoods[row, rank])
        graft(tree, weights, count, parent, token, COPY_LOGIT, confidence)
        places[entry] = count
        count += 1
    return count


class RecyclingDrafter:
    """Token Recycling, a peer to compare with.

    The table is the one of RACER, so a token never seen is a leaf (the original draws token 0 from a zero row). With a budget
    under 81 the tree is the template's first budget - 1 nodes, level by level and the likeliest first. base: see
    CopyLogitTable. Not for use from two threads at a time.
    """

    learns = True

    def __init__(self, k: int = MAX_RANKS, table_rows: int = 32_768, base: CopyLogitTable | None = None) -> None:
        self.table = CopyLogitTable(k, table_rows, base)
        self._base = base if base is not None else CopyLogitTable(k, 1)
        self._parents, self._ranks = template(min(k, MAX_RANKS))
        self._places: Int64Array = np.empty(self._parents.size, np.int64)
        self._workspace = Workspace(1)
        self._workspace.reserve(self._parents.size)
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
        """Write the rows top_ids [n, k] and top_probs [n, k] of tokens [n]; later rows win."""
        self.table.write(tokens, top_ids, top_probs)

    def propose(self, budget: int, max_depth: int, floor: float = 0.0, ends: Ends = NO_ENDS) -> DraftTree:
        """The template's tree. Raises ValueError when no token has been observed."""
        if not 0 <= self._root < MAX_TOKEN:
            raise ValueError("observe at least one token before proposing")
        nodes = min(budget, self._parents.size)
        if nodes < 2 or max_depth < 1:
            return DraftTree.root_only(self._root)
        space, table, base = self._workspace, self.table, self._base
        count = fill_template(
            space.tree,
            space.weights,
            self._root,
            self._parents[:nodes],
            self._ranks[:nodes],
            self._places,
            max_depth,
            ends,
            table.keys,
            table.values,
            table.ids,
            table.probs,
            base.keys,
            base.values,
            base.ids,
            base.probs,
        )
        return space.harvest(count)

    def judge(self, verified: int, path: Sequence[int], truth: int) -> None:
        pass

    @property
    def state(self) -> DrafterState:
        return DrafterState(copy_logit_rows=len(self.table))

    @property
    def nbytes(self) -> int:
        """Bytes of the session's state and of the scratch, without the shared base layer."""
        return self.table.nbytes + self._workspace.nbytes
