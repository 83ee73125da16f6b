"""Measures at start what a step costs on this machine: T(n), once per model, dtype, device and thread count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from app.engine.cost.measurements import Measurements
from app.engine.cost.neighbours import disturbance
from app.engine.cost.steps import PlainCost, StepCosts
from app.engine.forward.target import Rows, SessionCache, Target
from app.engine.sampling.logits import successors
from racer.budget import CostCurve
from racer.tree import DraftTree

logger = logging.getLogger(__name__)

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
DRAFT_SIZES = (1, 2, 4, 8, 16)  # of a forward of the draft model: one row per session, or text it has not read yet
CONTEXT = 256  # tokens of committed context while measuring
ROUNDS = 5  # at most
SETTLED = 0.98, 0.9  # rounds end when the least times of all sizes on average, and of each, stay above these shares of the last
HALVINGS = 6  # at most, of pieces of the curve that rise steeply
HALVING_ROUNDS = 2
CLIFF = 0.1  # of a step's time: a piece that rises by this much more than its neighbours is halved
PATIENCE = 10.0  # seconds after which measuring ends


def given_curve(points: tuple[tuple[int, float], ...]) -> CostCurve | None:
    """points: (rows, seconds); None without any."""
    return CostCurve([rows for rows, _ in points], [seconds for _, seconds in points]) if points else None


@dataclass(frozen=True, slots=True)
class Probe:
    """Runs steps of a model as decoding does, to time them.

    vocab_size: ids that may be emitted. top_k: successors taken of each row. max_context: tokens of a text.
    """

    target: Target
    vocab_size: int
    top_k: int
    max_context: int

    def step(self, cache: SessionCache, size: int) -> float:
        """Seconds of a step of `size` rows after the committed text of the cache."""
        parents = np.zeros(size, np.int32)
        parents[0] = -1
        depth = np.minimum(np.arange(size, dtype=np.int32), 1)
        tokens = np.arange(size, dtype=np.int64) % self.vocab_size
        tree = DraftTree(tokens, parents, depth, np.ones(size, np.uint8), np.ones(size, np.float32))
        began = time.perf_counter()
        logits = self.target.forward([Rows.of_tree(cache, tree)])[:, : self.vocab_size]
        successors(logits, self.top_k, probabilities=True)
        return time.perf_counter() - began


def measure(probe: Probe, files: Measurements | None = None, sizes: Sequence[int] = SIZES) -> CostCurve:
    """T(n) as kept by an earlier start, or from steps run now; then kept, unless other programs disturbed the measurement."""
    if files is None:
        return _measured(probe, sizes)
    kept = files.load()
    if kept is not None:
        return kept
    before = files.read()
    curve = _measured(probe, sizes)
    files.disturbed = taken = disturbance(before, files.read(), files.spare)
    if taken:
        logger.info("other programs used %.1f cores meanwhile: these costs are not kept, the next start measures again", taken)
    else:
        files.save(curve)
    return curve


def step_costs(probe: Probe, fixed: CostCurve | None, files: Measurements | None) -> StepCosts:
    """What steps of a target cost: as given, or measured and then corrected by every step."""
    curve = (fixed or measure(probe, files)).padded(probe.target.computed)
    return StepCosts(curve, PlainCost(curve), refine=fixed is None)


def _measured(probe: Probe, sizes: Sequence[int]) -> CostCurve:
    """From steps of each size. The steepest pieces are halved, so that a sudden rise is located and not taken for a slope."""
    length = max(1, min(CONTEXT, probe.max_context - 2))
    cache = probe.target.open(length + sizes[-1])
    probe.target.forward([Rows.of_text(cache, [0] * length, length - 1)])
    cache.commit(list(range(length)))
    times = _times(lambda size: probe.step(cache, size), sizes, ROUNDS, PATIENCE)
    began = time.monotonic()
    for _ in range(HALVINGS):
        piece = steepest(times, probe.target.computed)
        left = PATIENCE / 2 - (time.monotonic() - began)
        if piece is None or left < 0:
            break
        for size, seconds in _times(lambda size: probe.step(cache, size), piece, HALVING_ROUNDS, left).items():
            times[size] = min(seconds, times.get(size, seconds))
    curve = CostCurve(sorted(times), [times[size] for size in sorted(times)])
    logger.info("a step costs %s", ", ".join(f"{1e3 * seconds:.1f} ms for {n}" for n, seconds in curve.points))
    return curve


def _times(step: Callable[[int], float], sizes: Sequence[int], rounds: int, patience: float) -> dict[int, float]:
    """Seconds of a step of each size, the least of all rounds: other programs can only add to it. The sizes take turns, so that
    a slow moment affects all of them alike."""
    started = time.monotonic()
    least = np.full(len(sizes), np.inf)
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for round_number in range(rounds + 1):
        for size in sizes:
            late = time.monotonic() - started > patience
            if late and times[size]:
                continue
            seconds = step(size)
            if round_number > 0 or late:  # the first round warms up
                times[size].append(seconds)
        if not all(times.values()):
            continue
        before, least = least, np.array([min(times[size]) for size in sizes])
        if time.monotonic() - started > patience or _settled(least / before):
            break
    return {size: min(found) for size, found in times.items()}


def _settled(gains: np.ndarray) -> bool:
    """gains: least time of each size over that of a round ago. On a quiet machine two rounds are enough."""
    average, each = SETTLED
    return bool(gains.mean() > average and gains.min() > each)


def steepest(times: Mapping[int, float], computed: Callable[[int], int]) -> tuple[int, int, int] | None:
    """The piece (lower, middle and upper size) that rises most compared with the gentler of its neighbours; None where no piece
    rises by much, or no such piece has a size in its middle.

    times: seconds by size. computed: rows that are computed for a size; middles are sizes without padding.
    """
    sizes = sorted(times)
    slopes = [(times[b] - times[a]) / (b - a) for a, b in pairwise(sizes)]
    most, found = CLIFF, None
    for place, (a, b) in enumerate(pairwise(sizes)):
        gentle = max(0.0, min(slopes[max(0, place - 1)], slopes[min(place + 1, len(slopes) - 1)]))
        beyond = (slopes[place] - gentle) * (b - a) / times[a]
        within = sorted({computed(size) for size in range(a + 1, b)} & set(range(a + 1, b)))
        if within and beyond > most:
            most, found = beyond, (a, within[len(within) // 2], b)
    return found
