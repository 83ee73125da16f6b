"""The walk: which of a draft tree's tokens the target keeps."""

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
    """Of one row of the target's logits: those of the tokens asked for, in their order, and the highest of all."""

    drafts: Sequence[float]
    highest: float


Choose = Callable[[int, int], int]  # (node, tokens emitted before in this step) -> the target's token after that node
# (node, token ids) -> what the raw row after the node says, and, where the request's settings change it, the changed row
Read = Callable[[int, Sequence[int]], Sequence[RowLogits]]
Teaches = Callable[[int, int, int], bool]  # (node, its first-ranked child, the target's token) -> whether the memory may learn
Protected = AbstractSet[int] | Callable[[int], bool]
ANY = frozenset(Source)


@dataclass(frozen=True, slots=True)
class Walk:
    """What one step emits.

    path: nodes kept, root first; its rows of KV stay. tokens: emitted tokens, one more than drafts kept, since the target's
    own token always ends a walk. sources: where each came from. rescued: indices into tokens of the draft tokens that were
    kept in place of the target's.

    What the memory learns from, in walking order, empty unless recorded: divergences, (draft, target), the first-ranked child
    and the target's token at each node where no child carried that token, rescued or not. compared: these, and the nodes where
    the target chose the first-ranked child. nominated: children that the memory (or a rule without one) put forward;
    refused_by_gate: those of them that the target's logits did not admit.
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

    The target's token is drawn first and then looked for among the children, so whatever was drafted, the emitted tokens
    are the target's: greedy decoding stays greedy, and a sample keeps its distribution. record: report the divergences too.
    table_of, teaches: see walk_csd.
    """
    path = [0]
    tokens: list[int] = []
    sources: list[Source] = []
    seen = _Seen(tree, table_of, teaches)
    node = 0
    while True:
        token = choose(node, len(tokens))
        tokens.append(token)
        child = tree.child_with(node, token)
        if record:
            seen.add(node, *_children(tree, node), token)
        if child < 0:
            sources.append(Source.TARGET)
            return Walk(
                tuple(path),
                tuple(tokens),
                tuple(sources),
                divergences=tuple(seen.divergences),
                compared=seen.compared,
            )
        sources.append(Source(int(tree.source[child])))
        path.append(child)
        node = child


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
    """Walk as walk_exact; where no child carries the target's token, a child may be kept in its place (CSD, lossy).

    Of the children that the rule nominates and that each row read admits, the one with the highest logit in the last row is
    kept, the first among equals, and the walk goes on below it: its KV and logits are there. read is called once per mismatch
    that has a nominated child. protected: ids that neither are rescued nor give way (EOS, stop, special, banned). table_of:
    the sources that `memory` counts: it is not asked about children of others, nor learns from them. teaches: asked where a
    child of such a source ranks first.
    """
    is_protected = protected if callable(protected) else protected.__contains__
    path = [0]
    tokens: list[int] = []
    sources: list[Source] = []
    rescued: list[int] = []
    seen = _Seen(tree, table_of, teaches)
    node = nominated = refused = 0
    while True:
        token = choose(node, len(tokens))
        nodes, drafts = _children(tree, node)
        seen.add(node, nodes, drafts, token)
        child = nodes[drafts.index(token)] if token in drafts else -1
        if child < 0 and drafts and not is_protected(token):
            candidates = [
                (child_node, draft)
                for child_node, draft in zip(nodes, drafts, strict=True)
                if not is_protected(draft)
                and rule.nominates(memory if int(tree.source[child_node]) in table_of else None, draft, token)
            ]
            if candidates:
                child, refusals = _best(candidates, read(node, [draft for _, draft in candidates]), rule)
                nominated += len(candidates)
                refused += refusals
            if child >= 0:
                rescued.append(len(tokens))
                token = int(tree.tokens[child])
        tokens.append(token)
        if child < 0:
            sources.append(Source.TARGET)
            break
        sources.append(Source(int(tree.source[child])))
        path.append(child)
        node = child
    return Walk(
        tuple(path),
        tuple(tokens),
        tuple(sources),
        tuple(rescued),
        tuple(seen.divergences),
        seen.compared,
        nominated,
        refused,
    )


@dataclass(slots=True)
class _Seen:
    """What one walk says of the draft source of a table."""

    tree: DraftTree
    table_of: Collection[int]
    teaches: Teaches
    compared: int = 0
    divergences: list[tuple[int, int]] = field(default_factory=list)

    def add(self, node: int, nodes: list[int], drafts: list[int], token: int) -> None:
        """nodes, drafts: the node's children and their tokens, first-ranked first; that one counts where its source does.

        Nothing is learnt where a lower-ranked one is chosen.
        """
        if not drafts or int(self.tree.source[nodes[0]]) not in self.table_of or token in drafts[1:]:
            return
        if self.teaches(node, nodes[0], token):
            self.compared += 1
            if drafts[0] != token:
                self.divergences.append((drafts[0], token))


def _children(tree: DraftTree, node: int) -> tuple[list[int], list[int]]:
    """A node's children in tree order, the first-ranked first: nodes and tokens."""
    nodes = np.flatnonzero(tree.parents == node)
    return nodes.tolist(), tree.tokens[nodes].tolist()


def _best(candidates: list[tuple[int, int]], rows: Sequence[RowLogits], rule: Rule) -> tuple[int, int]:
    """The admitted node of the highest logit in the last row, -1 for none, and how many were refused."""
    best, z_best, refusals = -1, -math.inf, 0
    for rank, (node, _) in enumerate(candidates):
        admitted = all(rule.admits(row.drafts[rank], row.highest, changed=place > 0) for place, row in enumerate(rows))
        if not admitted:
            refusals += 1
        elif rows[-1].drafts[rank] > z_best:
            best, z_best = node, rows[-1].drafts[rank]
    return best, refusals
