"""The paper's Figure 2 for one calibration: how often each pair diverges, and how far apart the target holds its tokens."""

from __future__ import annotations

import logging
import math
from pathlib import Path

from csd.divergence import Divergences

logger = logging.getLogger(__name__)

PAIRS_SHOWN = 30


def draw(found: Divergences, tau: float, path: Path) -> bool:
    """Write a PNG; without matplotlib, or without any divergence, nothing. tau: the gate that is marked."""
    if not found.pairs:
        return False
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        logger.warning("no plot: matplotlib is not installed (pip install 'racer-csd[bench]')")
        return False
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    entries = found.entries()
    left.loglog(range(1, len(entries) + 1), [count for _, _, count in entries], marker=".", linewidth=0.8)
    left.set(xlabel="pair, by frequency", ylabel="divergences", title=f"{found.events} divergences of {len(entries)} pairs")
    shown = [found.pairs[draft, target] for draft, target, _ in entries[:PAIRS_SHOWN]]
    for place, record in enumerate(shown, start=1):
        right.plot([place, place], [record.least, record.greatest], color="tab:blue", linewidth=2.5, alpha=0.5)
        right.plot(place, record.mean, marker="o", color="tab:blue", markersize=4)
    right.axhline(math.log(tau), color="tab:red", linewidth=0.8, linestyle="--", label=f"gate, ln {tau:g}")
    right.set(
        xlabel="pair, by frequency", ylabel="logit gap: draft less target", title="least, mean and greatest gap of a pair"
    )
    right.legend()
    figure.savefig(path, dpi=120)
    return True
