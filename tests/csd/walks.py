"""A small draft tree and a target model whose logits are set by hand, for tests of the walk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from csd.gate import Rule
from csd.memory import CorrectionMemory
from csd.verify import ANY, RowLogits, Walk, walk_csd
from racer.tree import DraftTree, Source

NOTHING: frozenset[int] = frozenset()


def tree_of(tokens: Sequence[int], parents: Sequence[int]) -> DraftTree:
    depth = [0] * len(tokens)
    for node in range(1, len(tokens)):
        depth[node] = depth[parents[node]] + 1
    sources = [Source.TARGET, *(Source(node % 3) for node in range(1, len(tokens)))]
    return DraftTree(
        np.array(tokens, np.int64),
        np.array(parents, np.int32),
        np.array(depth, np.int32),
        np.array(sources, np.uint8),
        np.ones(len(tokens), np.float32),
    )


Row = dict[int, float]


class Target:
    """A target model: its logits per node, raw and as changed by a request. asked: the calls of read."""

    def __init__(self, rows: dict[int, Row]) -> None:
        self.rows = rows
        self.changed: dict[int, Row] = {}
        self.sampled: dict[int, int] = {}  # by node: the token sampled, where it is not the likeliest
        self.asked: list[tuple[int, list[int]]] = []

    def choose(self, node: int, emitted: int) -> int:
        return self.sampled.get(node, self.likeliest(node))

    def likeliest(self, node: int) -> int:
        row = self.changed.get(node, self.rows[node])
        return max(row, key=row.__getitem__)

    def read(self, node: int, ids: Sequence[int]) -> list[RowLogits]:
        self.asked.append((node, list(ids)))
        rows = [rows[node] for rows in (self.rows, self.changed) if node in rows]
        return [RowLogits([row[token] for token in ids], max(row.values())) for row in rows]

    def walk(
        self,
        tree: DraftTree,
        rule: Rule,
        memory: CorrectionMemory | None = None,
        protected: frozenset[int] | Callable[[int], bool] = NOTHING,
        table_of: frozenset[Source] = ANY,
    ) -> Walk:
        return walk_csd(tree, self.choose, self.read, rule, memory, protected, table_of=table_of)


def remembering(*pairs: tuple[int, int], times: int = 7) -> CorrectionMemory:
    memory = CorrectionMemory()
    for draft, target in pairs:
        memory.record(draft, target, times)
    return memory


# Root 0 with children 1 (token 5) and 2 (token 6); node 3 (token 7) below 1, node 4 (token 8) below 2.
TREE = tree_of([9, 5, 6, 7, 8], [-1, 0, 0, 1, 2])


def target() -> Target:
    """The target prefers 1 at the root, with 5 lower by 2 nats and 6 by 3; below it the drafted tokens; 2 at the leaves."""
    rows = {0: {1: 4.0, 5: 2.0, 6: 1.0}, 1: {7: 3.0, 1: 0.0}, 2: {8: 3.0, 1: 0.0}, 3: {2: 1.0, 0: 0.0}, 4: {2: 1.0, 0: 0.0}}
    return Target(rows)
