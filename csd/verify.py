"""The walk: which of a draft tree's tokens the target keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from csd.gate import Rule
from csd.memory import CorrectionMemory
from racer.tree import DraftTree, Source

Choose = Callable[[int, int], int]  # (node, tokens emitted before in this step) -> the target's token after that node
LogitsOf = Callable[[int, Sequence[int]], Sequence[float]]  # (node, token ids) -> the target's raw logits of these ids
Likeliest = Callable[[int], int]  # node -> the token with the highest raw logit after it
Protected = AbstractSet[int] | Callable[[int], bool]
ANY = frozenset(Source)


@dataclass(frozen=True, slots=True)
class Walk:
    """What one step emits.

    path: nodes kept, root first; its rows of KV stay. tokens: emitted tokens, one more than drafts kept, since the target's
    own token always ends a walk. sources: where each came from. rescued: indices into tokens of the draft tokens that were
    kept in place of the target's.

    What the memory learns from, in walking order, empty unless recorded: divergences, (draft, target), the first-ranked child
    and the target's token at each node where no child carried that token, rescued or not; agreements, first-ranked children
    that the target chose. nominated: children that the memory (or a rule without one) put forward; refused_by_gate: those of
    them that the target's logits did not admit.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    sources: tuple[Source, ...]
    rescued: tuple[int, ...] = ()
    divergences: tuple[tuple[int, int], ...] = ()
    agreements: tuple[int, ...] = ()
    nominated: int = 0
    refused_by_gate: int = 0

    @property
    def accepted(self) -> int:
        """Draft tokens kept."""
        return len(self.path) - 1


def walk_exact(tree: DraftTree, choose: Choose, *, record: bool = False, learn_from: Collection[int] = ANY) -> Walk:
    """Follow the target's own choice from the root for as long as a child carries it.

    The target's token is drawn first and then looked for among the children, so whatever was drafted, the emitted tokens
    are the target's: greedy decoding stays greedy, and a sample keeps its distribution. record: report the divergences and
    agreements too, of drafts from the sources `learn_from`.
    """
    path = [0]
    tokens: list[int] = []
    sources: list[Source] = []
    seen = _Seen(tree, learn_from)
    node = 0
    while True:
        token = choose(node, len(tokens))
        tokens.append(token)
        child = tree.child_with(node, token)
        if record:
            seen.add(*_children(tree, node), token)
        if child < 0:
            sources.append(Source.TARGET)
            return Walk(
                tuple(path),
                tuple(tokens),
                tuple(sources),
                divergences=tuple(seen.divergences),
                agreements=tuple(seen.agreements),
            )
        sources.append(Source(int(tree.source[child])))
        path.append(child)
        node = child


def walk_csd(
    tree: DraftTree,
    choose: Choose,
    logits_of: LogitsOf,
    rule: Rule,
    memory: CorrectionMemory | None,
    protected: Protected,
    likeliest: Likeliest | None = None,
    learn_from: Collection[int] = ANY,
) -> Walk:
    """Walk as walk_exact; where no child carries the target's token, a child may be kept in its place (CSD, lossy).

    Of the children that the rule nominates and the target's raw logits admit, the one with the highest logit is kept, the
    first among equals, and the walk goes on below it: its KV and logits are there. logits_of is called once per mismatch
    that has a nominated child. protected: ids that neither are rescued nor give way (EOS, stop, special, banned).
    learn_from: sources whose divergences and agreements are reported.
    likeliest: needed by a rule that compares with the row's highest logit; ValueError without.
    """
    if rule.against_likeliest and likeliest is None:
        raise ValueError("this rule needs the likeliest token of a node")
    is_protected = protected if callable(protected) else protected.__contains__
    path = [0]
    tokens: list[int] = []
    sources: list[Source] = []
    rescued: list[int] = []
    seen = _Seen(tree, learn_from)
    node = nominated = refused = 0
    while True:
        token = choose(node, len(tokens))
        nodes, drafts = _children(tree, node)
        seen.add(nodes, drafts, token)
        child = nodes[drafts.index(token)] if token in drafts else -1
        if child < 0 and drafts and not is_protected(token):
            candidates = [
                (nodes[rank], draft)
                for rank, draft in enumerate(drafts)
                if not is_protected(draft) and rule.nominates(memory, draft, token)
            ]
            if candidates:
                reference = likeliest(node) if rule.against_likeliest and likeliest is not None else token
                *logits, z_reference = logits_of(node, [*(draft for _, draft in candidates), reference])
                child, refusals = _best(candidates, logits, z_reference, rule)
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
        tuple(seen.agreements),
        nominated,
        refused,
    )


@dataclass(slots=True)
class _Seen:
    """Divergences and agreements of one walk."""

    tree: DraftTree
    learn_from: Collection[int]
    divergences: list[tuple[int, int]] = field(default_factory=list)
    agreements: list[int] = field(default_factory=list)

    def add(self, nodes: list[int], drafts: list[int], token: int) -> None:
        """nodes, drafts: a node's children and their tokens, first-ranked first; that one counts where its source does.

        Nothing is learnt where a lower-ranked one is chosen.
        """
        if not drafts or int(self.tree.source[nodes[0]]) not in self.learn_from:
            return
        if drafts[0] == token:
            self.agreements.append(token)
        elif token not in drafts:
            self.divergences.append((drafts[0], token))


def _children(tree: DraftTree, node: int) -> tuple[list[int], list[int]]:
    """A node's children in tree order, the first-ranked first: nodes and tokens."""
    nodes = np.flatnonzero(tree.parents == node)
    return nodes.tolist(), tree.tokens[nodes].tolist()


def _best(candidates: list[tuple[int, int]], logits: Sequence[float], z_reference: float, rule: Rule) -> tuple[int, int]:
    """The admitted node of the highest logit, -1 for none, and how many were refused."""
    best, z_best, refusals = -1, -math.inf, 0
    for (node, _), z_draft in zip(candidates, logits, strict=True):
        if not rule.admits(z_draft, z_reference):
            refusals += 1
        elif z_draft > z_best:
            best, z_best = node, z_draft
    return best, refusals
