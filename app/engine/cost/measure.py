"""What a step costs on this machine: T(n) is measured at start, once per model, dtype, device and thread count."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from app.engine.cost.files import keep, read_kept
from app.engine.cost.neighbours import CpuUsage, disturbance, read_processors
from app.engine.cost.plain import PlainCost
from app.engine.cost.steps import StepCosts
from app.engine.forward.target import Rows, SessionCache, Target
from app.engine.models.loading import LoadedModel
from app.engine.models.machine import allowed_cpus, processor
from app.engine.sampling.logits import successors
from racer.budget import CostCurve
from racer.tree import DraftTree

logger = logging.getLogger(__name__)

VERSION = 2  # of the file; counted up when its content means something else
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
DRAFT_SIZES = (1, 2, 4, 8, 16)  # of a forward of the draft model: one row per session, or what it has to catch up with
CONTEXT = 256  # tokens of committed context while measuring
ROUNDS = 5  # at most
SETTLED = 0.98, 0.9  # of their least times so far: the rounds end when the sizes gained no more on average, and none by itself
HALVINGS = 6  # of pieces of the curve that rise steeply, at most
HALVING_ROUNDS = 2
CLIFF = 0.1  # of a step's time: what a piece must rise beyond its neighbours to be halved
PATIENCE = 10.0  # seconds after which the sizes that are measured must do


class ModelMemory:
    """Files that keep what was measured of one model on one machine."""

    def __init__(
        self,
        cache: Path,
        loaded: LoadedModel,
        *,
        drafts: bool = False,
        read: Callable[[], CpuUsage | None] = read_processors,
    ) -> None:
        """drafts: whether it serves as a draft model, for which fewer sizes are measured. read: how busy the machine is."""
        device = torch.cuda.get_device_name(loaded.device) if loaded.device.type == "cuda" else processor()
        parameters = list(loaded.model.parameters())
        content = hashlib.sha256(repr([tuple(parameter.shape) for parameter in parameters]).encode())
        for parameter in parameters:
            content.update(repr(parameter.detach().flatten()[:8].float().tolist()).encode())
        model = f"{type(loaded.model).__name__}-{content.hexdigest()[:16]}-{str(loaded.dtype).removeprefix('torch.')}"
        machine = hashlib.sha256(repr((device, torch.get_num_threads(), torch.__version__)).encode()).hexdigest()[:12]
        self._path = cache / "measured" / f"{model}-{machine}{'-draft' if drafts else ''}.json"
        self.read = read
        threads = torch.get_num_threads() if loaded.device.type == "cpu" else 1  # one thread feeds an accelerator
        self.disturbed = 0.0  # cores that other programs used while it was measured, where they were too many
        self.spare = max(0, allowed_cpus() - threads)
        self.prior_path = cache / "measured" / f"{model}.npz"

    def load(self) -> CostCurve | None:
        """The curve that was kept. Damage is told and means measuring again."""
        return read_kept(self._path, _curve_of)

    def save(self, curve: CostCurve) -> None:
        content = json.dumps({"version": VERSION, "curve": curve.points})
        keep(self._path, lambda stream: stream.write(content.encode()))


def _curve_of(path: Path) -> CostCurve:
    kept = json.loads(path.read_text(encoding="utf-8"))
    if kept.get("version") != VERSION:
        raise ValueError("it is of another version")
    return CostCurve([int(n) for n, _ in kept["curve"]], [float(seconds) for _, seconds in kept["curve"]])


def given_curve(points: tuple[tuple[int, float], ...]) -> CostCurve | None:
    """points: (rows, seconds); None without any."""
    return CostCurve([rows for rows, _ in points], [seconds for _, seconds in points]) if points else None


@dataclass(frozen=True, slots=True)
class Probe:
    """Steps of a model to be timed, as decoding makes them.

    vocab_size: ids that may be emitted. top_k: successors taken of each row. max_context: tokens of a text.
    """

    target: Target
    vocab_size: int
    top_k: int
    max_context: int

    def step(self, cache: SessionCache, size: int) -> float:
        """Seconds of a step of this many rows behind what the cache holds."""
        parents = np.zeros(size, np.int32)
        parents[0] = -1
        depth = np.minimum(np.arange(size, dtype=np.int32), 1)
        tokens = np.arange(size, dtype=np.int64) % self.vocab_size
        tree = DraftTree(tokens, parents, depth, np.ones(size, np.uint8), np.ones(size, np.float32))
        began = time.perf_counter()
        logits = self.target.forward([Rows.of_tree(cache, tree)])[:, : self.vocab_size]
        successors(logits, self.top_k, probabilities=True)
        return time.perf_counter() - began


def measure(probe: Probe, memory: ModelMemory | None = None, sizes: Sequence[int] = SIZES) -> CostCurve:
    """T(n) from the memory, or by running steps; kept in the memory unless other programs were in the way."""
    if memory is None:
        return _measured(probe, sizes)
    kept = memory.load()
    if kept is not None:
        return kept
    before = memory.read()
    curve = _measured(probe, sizes)
    memory.disturbed = taken = disturbance(before, memory.read(), memory.spare)
    if taken:
        logger.info("other programs used %.1f cores meanwhile: these costs are not kept, the next start measures again", taken)
    else:
        memory.save(curve)
    return curve


def step_costs(probe: Probe, fixed: CostCurve | None, memory: ModelMemory | None) -> StepCosts:
    """What steps of a target cost: as given, or measured and then corrected by every step."""
    curve = (fixed or measure(probe, memory)).padded(probe.target.computed)
    return StepCosts(curve, PlainCost(curve), refine=fixed is None)


def _measured(probe: Probe, sizes: Sequence[int]) -> CostCurve:
    """By running steps of each size; the steepest pieces are halved, so that a cliff is found and not drawn as a slope."""
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
    """Seconds of a step of each size, the least of all rounds: whatever else runs here only adds. The sizes take turns, so
    that a slow moment hits all of them alike."""
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
    """gains: least time of each size as a share of what it was a round ago. On a quiet machine two rounds do."""
    average, each = SETTLED
    return bool(gains.mean() > average and gains.min() > each)


def steepest(times: Mapping[int, float], computed: Callable[[int], int]) -> tuple[int, int, int] | None:
    """The piece of a curve that rises most beyond the gentler of its neighbours, with a size in its middle; None where no
    piece rises by much, or none that does has a size within.

    times: seconds by size. computed: rows that are really computed for a size; only sizes without padding are asked for.
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
