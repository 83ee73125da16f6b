"""What a rescue costs beside exact verification: the memory's lookup, the gate, and a whole walk with one mismatch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from csd.gate import CsdRule, gate
from csd.memory import CorrectionMemory
from csd.verify import RowLogits, walk_csd, walk_exact
from racer.tree import DraftTree, Source

GAMMA = 6
PAIRS = 20_000  # a table of some hundred thousand calibrated positions
CALLS = 1000  # of a lookup or a gate, timed as one


def measure_rescue(rounds: int, vocabulary: int) -> dict[str, float]:
    """Medians in microseconds. A chain of six drafts diverges at the third from the target, which has it above the gate."""
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, vocabulary, (PAIRS, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    memory = CorrectionMemory()
    memory.merge([(int(draft), int(target), 9.0) for draft, target in pairs])
    draft, target = map(int, pairs[0])
    drafted = [1, 2, 3, draft, 5, 6, 7]
    chosen = [2, 3, target, 5, 6, 7, 8]
    tree = DraftTree(
        np.asarray(drafted, np.int64),
        np.arange(-1, GAMMA, dtype=np.int32),
        np.arange(GAMMA + 1, dtype=np.int32),
        np.full(GAMMA + 1, Source.DRAFT_MODEL, np.uint8),
        np.ones(GAMMA + 1, np.float32),
    )
    logits = torch.zeros((GAMMA + 1, vocabulary), dtype=torch.bfloat16)
    rule = CsdRule()

    def read(node: int, tokens: Sequence[int]) -> list[RowLogits]:
        *drafts, highest = logits[node, [*tokens, chosen[node]]].float().tolist()
        return [RowLogits(drafts, highest)]

    def exact() -> object:
        return walk_exact(tree, lambda node, _: chosen[node], record=True)

    def rescuing() -> object:
        walk = walk_csd(tree, lambda node, _: chosen[node], read, rule, memory, frozenset())
        assert len(walk.rescued) == 1
        return walk

    figures = {
        "lookup": _median(rounds, lambda: [memory.count(draft, target) for _ in range(CALLS)]) / CALLS,
        "gate": _median(rounds, lambda: [gate(0.5, 1.0, 0.01) for _ in range(CALLS)]) / CALLS,
        "exact walk": _median(rounds, exact),
        "csd walk": _median(rounds, rescuing),
    }
    return {name: 1e6 * seconds for name, seconds in figures.items()}


def _median(rounds: int, call: Callable[[], object]) -> float:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return float(np.median(times))
