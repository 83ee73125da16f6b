"""How likely a candidate is to be accepted, learnt online from what the target did with candidates of the same kind.

A candidate is told by two classes. The retrieval class: how long a match proposed it and what share of that match's
continuations it had. The copy-logit class: which row proposed it (by one or two tokens of context, of the session, of the
warm layer, or the prior) and with what probability. A cell holds the candidates of one pair of classes; while a cell is young
its estimate leans on the two classes taken alone, as if they were independent witnesses. Only counts are kept, no token.
"""

from __future__ import annotations

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

CELL_PRIOR = 6.0  # trials that the two classes taken alone are worth in a cell
CLASS_PRIOR = 20.0  # trials that the prior of a class is worth
MEMORY = 20_000.0  # trials after which a cell or a class forgets half, so that it follows the traffic


@njit(nogil=True, cache=True)
def retrieval_class(match: int, count: int, total: int) -> int:
    """Class of a continuation seen `count` times of `total` below a match of so many tokens; 1 and up."""
    length = match - 1 if match <= 4 else (4 if match <= 6 else 5)
    alone = 3 if count > 1 else 2
    share = alone if count == total else (1 if 2 * count > total else 0)
    return 1 + length * SHARE_CLASSES + share


@njit(nogil=True, cache=True)
def copy_class(kind: int, probability: float) -> int:
    """Class of a successor with this probability in a row of this kind (0 to ROW_KINDS - 1); 1 and up."""
    if probability < 0.1:
        level = 0 if probability < 0.01 else (1 if probability < 0.02 else (2 if probability < 0.05 else 3))
    elif probability < 0.5:
        level = 4 if probability < 0.2 else (5 if probability < 0.35 else 6)
    else:
        level = 7 if probability < 0.7 else (8 if probability < 0.9 else 9)
    return 1 + kind * PROBABILITY_CLASSES + level


@njit(nogil=True, cache=True)
def refresh(counts: Float64Array, alone: Float64Array, table: Float32Array, retrieval: int, copy: int) -> None:
    """Recompute the estimate of one cell."""
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
    table[retrieval, copy] = min(max(hits / trials, 1e-4), 0.995)


@njit(nogil=True, cache=True)
def _tally(cell: Float64Array, hit: bool) -> None:
    """Count one trial in (hits, trials)."""
    if cell[TRIALS] >= MEMORY:
        cell[HITS] *= 0.5
        cell[TRIALS] *= 0.5
    cell[HITS] += 1.0 if hit else 0.0
    cell[TRIALS] += 1.0


@njit(nogil=True, cache=True)
def count(counts: Float64Array, alone: Float64Array, table: Float32Array, retrieval: int, copy: int, hit: bool) -> None:
    """Take in what became of one candidate."""
    _tally(counts[retrieval, copy], hit)
    if copy == 0:
        _tally(alone[0, retrieval], hit)
    elif retrieval == 0:
        _tally(alone[1, copy], hit)
    refresh(counts, alone, table, retrieval, copy)


# Starting estimates: by match length (rows) and share; by the probability a row states.
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


class Acceptance:
    """The learnt table, shared by all sessions of an engine. One writer at a time.

    table float32 [RETRIEVAL_CLASSES, COPY_CLASSES]: probability that the target takes a candidate of this cell, given that
    it took the candidate's parent.
    """

    def __init__(self) -> None:
        self.counts: Float64Array = np.zeros((RETRIEVAL_CLASSES, COPY_CLASSES, 2), np.float64)
        self.alone: Float64Array = np.zeros((2, max(RETRIEVAL_CLASSES, COPY_CLASSES), 2), np.float64)
        self.table: Float32Array = np.zeros((RETRIEVAL_CLASSES, COPY_CLASSES), np.float32)
        self._start()

    def _start(self) -> None:
        """Priors: what SmolLM2-135M did on a development half of Spec-Bench, where one source alone proposed a token."""
        self.alone[:, :, TRIALS] = CLASS_PRIOR
        self.alone[0, 1 : 1 + MATCH_CLASSES * SHARE_CLASSES, HITS] = CLASS_PRIOR * np.asarray(MATCHED).ravel()
        for kind in range(ROW_KINDS):
            first = 1 + kind * PROBABILITY_CLASSES
            likely = np.asarray(BY_TWO_TOKENS if kind < 2 else BY_ONE_TOKEN)
            self.alone[1, first : first + PROBABILITY_CLASSES, HITS] = CLASS_PRIOR * likely
        for retrieval in range(RETRIEVAL_CLASSES):
            for copy in range(COPY_CLASSES):
                refresh(self.counts, self.alone, self.table, retrieval, copy)
