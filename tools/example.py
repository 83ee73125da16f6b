"""The worked example of docs/how-it-works.md: RACER's own drafter and both walks, on words in place of token ids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from csd.gate import CsdRule
from csd.memory import CorrectionMemory
from csd.verify import RowLogits, Walk, walk_csd, walk_exact
from racer.drafter import RacerConfig
from racer.paper import RacerDrafter
from racer.tree import DraftTree

CONTEXT = "one two three four five , one two three"
BUDGET = 14
BREADTH = 3
# successors that the target gave after the latest occurrence of each word, with their probabilities
ROWS = {
    "three": {"four": 0.80, "five": 0.10, ",": 0.05},
    "four": {"five": 0.75, "and": 0.15, ",": 0.06},
    "five": {"6": 0.50, ",": 0.30, ".": 0.10},
    "6": {"seven": 0.60, "7": 0.30, ",": 0.05},
}
ANSWER = "four five , six"  # the target's own choices; after `five ,` it does not go on as before
OTHER = "four five six"  # in the second picture it means `six`, where the draft has `6`
SEEN, LAMBDA, TAU = 9, 6.0, 0.01  # times (6, six) has diverged before, and the rule
Z_DRAFT, Z_TARGET = 14.1, 15.3  # the target's raw logits of `6` and `six` at that place

WORDS = sorted({*CONTEXT.split(), *ROWS, *ANSWER.split(), *OTHER.split(), "seven", *(w for row in ROWS.values() for w in row)})
IDS = {word: index for index, word in enumerate(WORDS)}


@dataclass(frozen=True, slots=True)
class Example:
    """A tree, and what a walk down it kept. words: of all nodes, then of all emitted tokens."""

    tree: DraftTree
    walk: Walk

    @property
    def words(self) -> list[str]:
        return [WORDS[token] for token in self.tree.tokens]

    @property
    def emitted(self) -> list[str]:
        return [WORDS[token] for token in self.walk.tokens]


def draft() -> DraftTree:
    """The tree that RACER as published draws up for the context."""
    drafter = RacerDrafter(RacerConfig(policy="paper", breadth=BREADTH))
    drafter.observe([IDS[word] for word in CONTEXT.split()])
    ids = np.array([[IDS[word] for word in row] for row in ROWS.values()])
    drafter.learn(np.array([IDS[word] for word in ROWS]), ids, np.array([list(row.values()) for row in ROWS.values()]))
    return drafter.propose(BUDGET, max_depth=6)


def exact() -> Example:
    tree = draft()
    answer = [IDS[word] for word in ANSWER.split()]
    return Example(tree, walk_exact(tree, lambda node, emitted: answer[emitted]))


def rescued() -> Example:
    """The same tree under the verifier csd."""
    tree = draft()
    memory = CorrectionMemory(100)
    for _ in range(SEEN):
        memory.record(IDS["6"], IDS["six"])
    answer = [IDS[word] for word in [*OTHER.split(), "seven", "."]]
    logits = {IDS["6"]: Z_DRAFT, IDS["six"]: Z_TARGET}
    rule = CsdRule(LAMBDA, TAU)

    def read(node: int, ids: Sequence[int]) -> list[RowLogits]:
        return [RowLogits([logits[i] for i in ids], max(logits.values()))]

    walk = walk_csd(tree, lambda node, emitted: answer[emitted], read, rule, memory, frozenset())
    return Example(tree, walk)


def gate() -> float:
    """What the logit difference of a rescue must reach."""
    return math.log(TAU)
