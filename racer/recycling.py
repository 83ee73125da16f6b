"""Token Recycling (arXiv 2408.08696): a fixed template of rank paths, filled from each token's latest top-k successors."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from racer.copy_logits import CopyLogitTable, Rows, find_row
from racer.drafter import Drafter, DrafterState
from racer.limits import NO_ENDS, Ends, Limits, may_extend, may_stand, named_limits
from racer.tree import DEPTH, TOKEN, DraftTree, Int64Array, Source
from racer.workspace import CONFIDENCE, Draft, Workspace, bounded, graft, plant

LAYERS = (8, 21, 25, 15, 8, 3)  # the paper's template: 80 nodes in 6 levels
MAX_RANKS = 8
COPY_LOGIT = int(Source.COPY_LOGIT)


@cache
def template(ranks: int = MAX_RANKS) -> tuple[Int64Array, Int64Array]:
    """Parents int64[n] and ranks int64[n] of the template's nodes, level by level, row 0 the root.

    The paper gives the sizes of the levels, not a rule for the paths. Here a level holds the likeliest children of the level
    before it, assuming that the chance of the successor of rank r (from 1) falls like a power of r (Zipf). Then the order of a
    level's paths is that of the product of their ranks, whatever the power; of equal products the smaller path comes first.
    With fewer than 8 ranks, levels are smaller where not enough paths exist.
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


class Template(NamedTuple):
    """The template's nodes, level by level, row 0 the root: parents int64 [n] and ranks int64 [n] (see `template`).

    places int64 [n] is scratch: the tree's row of each template node, -1 where there is none.
    """

    parents: Int64Array
    ranks: Int64Array
    places: Int64Array


@njit(nogil=True, cache=True)
def fill_template(draft: Draft, root: int, template: Template, layers: tuple[Rows, Rows], limits: Limits) -> int:
    """Plant the root token and add the template's nodes; returns the number of nodes.

    layers: of the session and the base. A template node is left out, with all below it, where the table has no successor of its
    rank or where it would stand below a token that ends the answer.
    """
    draft, template, limits = Draft(*draft), Template(*template), named_limits(limits)
    layers = (Rows(*layers[0]), Rows(*layers[1]))
    tree, weights, places = draft.tree, draft.weights, template.places
    plant(draft, root)
    places[0] = 0
    count = 1
    for entry in range(1, min(limits.budget, template.parents.size)):
        places[entry] = -1
        parent = int(places[template.parents[entry]])
        if parent < 0 or not may_extend(limits, tree, parent):
            continue
        layer, row = find_row(layers, int(tree[parent, TOKEN]))
        if row < 0:
            continue
        rank = int(template.ranks[entry])
        token = int(layers[layer].ids[row, rank])
        if token < 0 or not may_stand(limits.ends, token, int(tree[parent, DEPTH]) + 1):
            continue
        confidence = float(weights[parent, CONFIDENCE]) * float(layers[layer].probs[row, rank])
        graft(draft, count, parent, token, COPY_LOGIT, bounded(confidence))
        places[entry] = count
        count += 1
    return count


class RecyclingDrafter(Drafter):
    """Token Recycling, to compare with.

    The table is that of RACER, so a token never seen is a leaf (the original drafts token 0 from a row of zeros). With a budget
    below 81 the tree has the template's first budget - 1 nodes, level by level and the likeliest first. base: see
    CopyLogitTable.
    """

    learns = True

    def __init__(self, k: int = MAX_RANKS, table_rows: int = 32_768, base: CopyLogitTable | None = None) -> None:
        super().__init__()
        self.table = CopyLogitTable(k, table_rows, base)
        self._base = base if base is not None else CopyLogitTable(k, 1)
        parents, ranks = template(min(k, MAX_RANKS))
        self._template = Template(parents, ranks, np.empty(parents.size, np.int64))
        self._workspace = Workspace(parents.size)

    def learn(
        self,
        tokens: npt.NDArray[np.integer],
        top_ids: npt.NDArray[np.integer],
        top_probs: npt.NDArray[np.floating],
        previous: npt.NDArray[np.integer] | None = None,
    ) -> None:
        """Write the copy-logit rows; later rows win."""
        self.table.write(tokens, top_ids, top_probs)

    def propose(self, budget: int, max_depth: int, floor: float = 0.0, ends: Ends = NO_ENDS) -> DraftTree:
        """The template's tree."""
        root = self._checked_root()
        if budget < 2 or max_depth < 1:
            return DraftTree.root_only(root)
        layers = tuple(self.table.rows), tuple(self._base.rows)
        limits = budget, max_depth, tuple(ends)
        count = fill_template(tuple(self._workspace.draft), root, tuple(self._template), layers, limits)
        return self._workspace.harvest(count)

    @property
    def state(self) -> DrafterState:
        return DrafterState(copy_logit_rows=len(self.table))

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + self._workspace.nbytes
