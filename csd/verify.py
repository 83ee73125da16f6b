"""The walk through a verified draft tree: which of its tokens the target keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from csd.gate import Rule
from csd.memory import CorrectionMemory
from racer.tree import DraftTree, Source


class RowLogits(NamedTuple):
    """Part of one row of the target's logits: of the tokens asked for, in their order, and the highest of the row."""

    drafts: Sequence[float]
    highest: float


Choose = Callable[[int, int], int]  # (node, tokens emitted in this step so far) -> the target's token after the node
# (node, token ids) -> logits of the raw row after the node and, if the request's settings change it, of the changed row
Read = Callable[[int, Sequence[int]], Sequence[RowLogits]]
Teaches = Callable[[int, int, int], bool]  # (node, its first-ranked child, the target's token) -> whether the memory may learn
Protected = AbstractSet[int] | Callable[[int], bool]
ANY = frozenset(Source)


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of walking one tree.

    path: nodes kept, root first; their KV rows stay. tokens: emitted tokens, one more than drafts kept, since every walk ends
    with a token of the target's own. sources: where each token came from. rescued: indices into tokens of the draft tokens
    that were kept in place of the target's.

    For the memory, in walking order: divergences, pairs (first-ranked child's token, target's token) of the nodes where no
    child carried the target's token, rescued or not. compared: number of these nodes and of those where the target chose the
    first-ranked child. nominated: children that the memory (or a rule without one) nominated. refused_by_gate: those of them
    that the target's logits did not admit. `walk_exact` leaves divergences and compared empty unless asked to record them.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    sources: tuple[Source, ...]
    rescued: tuple[int, ...] = ()
    divergences: tuple[tuple[int, int], ...] = ()
    compared: int = 0
    nominated: int = 0
    refused_by_gate: int = 0

    @property
    def accepted(self) -> int:
        """Draft tokens kept."""
        return len(self.path) - 1


def _always(node: int, child: int, token: int) -> bool:
    return True


def walk_exact(
    tree: DraftTree, choose: Choose, *, record: bool = False, table_of: Collection[int] = ANY, teaches: Teaches = _always
) -> Walk:
    """Follow the target's own choice from the root for as long as a child carries it.

    The target's token is drawn first and only then compared with the children. So the emitted tokens are the target's,
    whatever was drafted: greedy decoding stays greedy, and sampling keeps its distribution. record: report divergences too.
    table_of, teaches: see walk_csd.
    """
    course = _Course(tree)
    comparison = _Comparison(tree, table_of, teaches)
    while not course.ended:
        token = choose(course.node, len(course.tokens))
        if record:
            comparison.add(course.node, *_children(tree, course.node), token)
        course.step(tree.child_with(course.node, token), token)
    return course.walk(comparison)


def walk_csd(
    tree: DraftTree,
    choose: Choose,
    read: Read,
    rule: Rule,
    memory: CorrectionMemory | None,
    protected: Protected,
    *,
    table_of: Collection[int] = ANY,
    teaches: Teaches = _always,
) -> Walk:
    """Walk as walk_exact, but where no child carries the target's token a child may be rescued: kept in its place (CSD, lossy).

    Of the children that the rule nominates and that every row read admits, the one with the highest logit in the last row is
    kept, the first of equals. The walk continues below it, since its KV and logits are there. read is called once per mismatch
    with a nominated child. protected: ids that are neither rescued nor replaced (EOS, stop, special, banned tokens).
    table_of: the sources that `memory` counts; children of other sources are neither looked up nor learnt from. teaches:
    called where the first-ranked child is of such a source.
    """
    is_protected = protected if callable(protected) else protected.__contains__
    course = _Course(tree)
    comparison = _Comparison(tree, table_of, teaches)
    while not course.ended:
        node, token = course.node, choose(course.node, len(course.tokens))
        nodes, drafts = _children(tree, node)
        comparison.add(node, nodes, drafts, token)
        if token in drafts:
            course.step(nodes[drafts.index(token)], token)
            continue
        tables = (memory if int(tree.source[child]) in table_of else None for child in nodes)
        candidates = [
            (child, draft)
            for child, draft, table in zip(nodes, drafts, tables, strict=True)
            if not is_protected(token) and not is_protected(draft) and rule.nominates(table, draft, token)
        ]
        if candidates:
            course.rescue(candidates, read(node, [draft for _, draft in candidates]), rule)
        if course.node == node:
            course.step(-1, token)
    return course.walk(comparison)


class _Course:
    """The current node of a walk and what it has emitted so far."""

    __slots__ = ("ended", "node", "nominated", "path", "refused", "rescued", "sources", "tokens", "tree")

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree
        self.node = self.nominated = self.refused = 0
        self.path = [0]
        self.tokens: list[int] = []
        self.sources: list[Source] = []
        self.rescued: list[int] = []
        self.ended = False

    def step(self, child: int, token: int) -> None:
        """Emit a token and go to the child that carries it; -1: the token is the target's own, and the walk ends."""
        self.tokens.append(token)
        if child < 0:
            self.sources.append(Source.TARGET)
            self.ended = True
            return
        self.sources.append(Source(int(self.tree.source[child])))
        self.path.append(child)
        self.node = child

    def rescue(self, candidates: list[tuple[int, int]], rows: Sequence[RowLogits], rule: Rule) -> None:
        """Step to the admitted candidate (node, token) with the highest logit in the last row, if any is admitted."""
        best, z_best = -1, -math.inf
        for rank in range(len(candidates)):
            admitted = all(rule.admits(row.drafts[rank], row.highest, changed=place > 0) for place, row in enumerate(rows))
            if not admitted:
                self.refused += 1
            elif rows[-1].drafts[rank] > z_best:
                best, z_best = rank, rows[-1].drafts[rank]
        self.nominated += len(candidates)
        if best >= 0:
            self.rescued.append(len(self.tokens))
            self.step(*candidates[best])

    def walk(self, comparison: _Comparison) -> Walk:
        return Walk(
            tuple(self.path),
            tuple(self.tokens),
            tuple(self.sources),
            tuple(self.rescued),
            tuple(comparison.divergences),
            comparison.compared,
            self.nominated,
            self.refused,
        )


@dataclass(slots=True)
class _Comparison:
    """What the memory may learn from a walk: how the target's choices compare with the first-ranked children."""

    tree: DraftTree
    table_of: Collection[int]
    teaches: Teaches
    compared: int = 0
    divergences: list[tuple[int, int]] = field(default_factory=list)

    def add(self, node: int, nodes: list[int], drafts: list[int], token: int) -> None:
        """Compare the target's token with the node's children and their tokens, the first-ranked first.

        Nothing is learnt where the target chose a lower-ranked child, or where the first-ranked one is of another source.
        """
        if not drafts or int(self.tree.source[nodes[0]]) not in self.table_of or token in drafts[1:]:
            return
        if self.teaches(node, nodes[0], token):
            self.compared += 1
            if drafts[0] != token:
                self.divergences.append((drafts[0], token))


def _children(tree: DraftTree, node: int) -> tuple[list[int], list[int]]:
    """A node's children and their tokens, in tree order, so the first-ranked first."""
    nodes = np.flatnonzero(tree.parents == node)
    return nodes.tolist(), tree.tokens[nodes].tolist()
