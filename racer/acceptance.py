"""How likely a candidate is to be accepted, learnt online from what the target did with candidates of the same kind.

A candidate has two classes. Its retrieval class: the length of the match that proposed it and its share of that match's
continuations. Its copy-logit class: the kind of row that proposed it (keyed by two tokens or by one, of the session or the warm
layer, or the prior) and its probability there. Each pair of classes is a cell of the table. While a cell has few trials, its
estimate leans on the estimates of its two classes, combined as if they were independent. Only counts are kept, no tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from racer.tree import Float32Array, Float64Array

MATCH_CLASSES = 6  # match length 1, 2, 3, 4, 5 to 6, 7 and more
SHARE_CLASSES = 4
RETRIEVAL_CLASSES = 1 + MATCH_CLASSES * SHARE_CLASSES  # 0: not retrieved
ROW_KINDS = 5
PROBABILITY_CLASSES = 10
COPY_CLASSES = 1 + ROW_KINDS * PROBABILITY_CLASSES  # 0: in no row

HITS = 0
TRIALS = 1

CELL_PRIOR = 6.0  # weight, in trials, of the estimate from the two classes in a cell
CLASS_PRIOR = 20.0  # weight, in trials, of the prior of a class
MEMORY = 20_000.0  # trials after which the counts of a cell or class are halved, so that they follow the traffic


@njit(nogil=True, cache=True)
def retrieval_class(match: int, count: int, total: int) -> int:
    """Class of a continuation seen `count` times of `total` after a match of `match` tokens; 1 or more."""
    length = match - 1 if match <= 4 else (4 if match <= 6 else 5)
    alone = 3 if count > 1 else 2
    share = alone if count == total else (1 if 2 * count > total else 0)
    return 1 + length * SHARE_CLASSES + share


@njit(nogil=True, cache=True)
def copy_class(kind: int, probability: float) -> int:
    """Class of a successor with this probability in a row of this kind (0 to ROW_KINDS - 1); 1 or more."""
    if probability < 0.1:
        level = 0 if probability < 0.01 else (1 if probability < 0.02 else (2 if probability < 0.05 else 3))
    elif probability < 0.5:
        level = 4 if probability < 0.2 else (5 if probability < 0.35 else 6)
    else:
        level = 7 if probability < 0.7 else (8 if probability < 0.9 else 9)
    return 1 + kind * PROBABILITY_CLASSES + level


# Starting estimates by match length (rows) and share, and by the probability in a row: acceptance with SmolLM2-135M on a
# development half of Spec-Bench, of tokens that a single source proposed.
MATCHED = (
    (0.01, 0.05, 0.08, 0.16),
    (0.02, 0.15, 0.20, 0.30),
    (0.03, 0.25, 0.40, 0.45),
    (0.05, 0.27, 0.45, 0.50),
    (0.05, 0.33, 0.50, 0.55),
    (0.07, 0.35, 0.72, 0.72),
)
BY_TWO_TOKENS = (0.003, 0.01, 0.025, 0.055, 0.08, 0.23, 0.30, 0.50, 0.55, 0.76)
BY_ONE_TOKEN = (0.002, 0.01, 0.03, 0.04, 0.10, 0.21, 0.28, 0.33, 0.57, 0.62)


class Acceptance(NamedTuple):
    """The learnt table, shared by all sessions of an engine. One writer at a time.

    counts float64 [RETRIEVAL_CLASSES, COPY_CLASSES, 2]: hits and trials of each cell. alone float64 [2, classes, 2]: those of
    each class, retrieval (0) and copy-logit (1), of candidates that no other source proposed. table float32 [RETRIEVAL_CLASSES,
    COPY_CLASSES]: probability that the target accepts a candidate of this cell, given that it accepted the parent.
    """

    counts: Float64Array
    alone: Float64Array
    table: Float32Array

    @staticmethod
    def initial() -> Acceptance:
        """The starting estimates."""
        cells = RETRIEVAL_CLASSES, COPY_CLASSES
        alone: Float64Array = np.zeros((2, max(cells), 2), np.float64)
        alone[:, :, TRIALS] = CLASS_PRIOR
        alone[0, 1 : 1 + MATCH_CLASSES * SHARE_CLASSES, HITS] = CLASS_PRIOR * np.asarray(MATCHED).ravel()
        for kind in range(ROW_KINDS):
            first = 1 + kind * PROBABILITY_CLASSES
            likely = np.asarray(BY_TWO_TOKENS if kind < 2 else BY_ONE_TOKEN)
            alone[1, first : first + PROBABILITY_CLASSES, HITS] = CLASS_PRIOR * likely
        acceptance = Acceptance(np.zeros((*cells, 2), np.float64), alone, np.zeros(cells, np.float32))
        for retrieval in range(RETRIEVAL_CLASSES):
            for copy in range(COPY_CLASSES):
                refresh(acceptance, retrieval, copy)
        return acceptance


@njit(nogil=True, cache=True)
def refresh(acceptance: Acceptance, retrieval: int, copy: int) -> None:
    """Recompute the estimate of one cell."""
    counts, alone = acceptance.counts, acceptance.alone
    first = alone[0, retrieval, HITS] / alone[0, retrieval, TRIALS]
    second = alone[1, copy, HITS] / alone[1, copy, TRIALS]
    if copy == 0:
        prior = first
    elif retrieval == 0:
        prior = second
    else:
        prior = 1.0 - (1.0 - first) * (1.0 - second)
    hits = counts[retrieval, copy, HITS] + CELL_PRIOR * prior
    trials = counts[retrieval, copy, TRIALS] + CELL_PRIOR
    acceptance.table[retrieval, copy] = min(max(hits / trials, 1e-4), 0.995)


@njit(nogil=True, cache=True)
def _tally(cell: Float64Array, hit: bool) -> None:
    """Count one trial in (hits, trials)."""
    if cell[TRIALS] >= MEMORY:
        cell[HITS] *= 0.5
        cell[TRIALS] *= 0.5
    cell[HITS] += 1.0 if hit else 0.0
    cell[TRIALS] += 1.0


@njit(nogil=True, cache=True)
def count(acceptance: Acceptance, retrieval: int, copy: int, hit: bool) -> None:
    """Count whether one candidate was accepted."""
    _tally(acceptance.counts[retrieval, copy], hit)
    if copy == 0:
        _tally(acceptance.alone[0, retrieval], hit)
    elif retrieval == 0:
        _tally(acceptance.alone[1, copy], hit)
    refresh(acceptance, retrieval, copy)
