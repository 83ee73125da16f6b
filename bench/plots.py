"""The plots of a report, as PNG files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

LONGEST = 16  # accepted lengths from here on share a bar


def draw(report: dict[str, Any], directory: Path) -> list[Path]:
    """Draw what the report holds; without matplotlib, or without any question, nothing."""
    if not report["environment"]["questions"]:
        return []
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        logger.warning("no plots: matplotlib is not installed (pip install 'racer-csd[bench]')")
        return []
    drawn = []
    for name, plot in (("speedup", _speedup), ("accepted_length", _accepted), ("step_cost", _cost)):
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        if plot(figure, report):
            path = directory / f"{name}.png"
            figure.savefig(path, dpi=120)
            drawn.append(path)
    return drawn


def _speedup(figure: Any, report: dict[str, Any]) -> bool:
    modes = report["modes"]
    categories = list(next(iter(modes.values()))["categories"])
    axes = figure.subplots()
    width = 0.8 / len(modes)
    for index, (name, mode) in enumerate(modes.items()):
        heights = [mode["categories"][category]["speedup"] for category in categories] + [mode["overall"]["speedup"]]
        places = [place + (index - (len(modes) - 1) / 2) * width for place in range(len(heights))]
        axes.bar(places, heights, width, label=name)
    axes.axhline(1.0, color="black", linewidth=0.8)
    shown = [" ".join(category.split()).replace("$", r"\$") for category in categories]  # a dollar would begin a formula
    axes.set_xticks(range(len(categories) + 1), [*shown, "overall"], rotation=30, ha="right")
    axes.set_ylabel("speedup against plain (median)")
    axes.legend(ncols=min(4, len(modes)), fontsize="small")
    return True


def _accepted(figure: Any, report: dict[str, Any]) -> bool:
    shown = {name: mode["acceptance_histogram"] for name, mode in report["modes"].items()}
    shown = {name: counts for name, counts in shown.items() if len(counts) > 1}
    if not shown:
        return False
    axes = figure.subplots()
    width = 0.8 / len(shown)
    longest = min(LONGEST, max(map(len, shown.values())) - 1)
    for index, (name, counts) in enumerate(shown.items()):
        heights = [*counts[:longest], sum(counts[longest:])]
        total = sum(heights)
        places = [place + (index - (len(shown) - 1) / 2) * width for place in range(len(heights))]
        axes.bar(places, [height / total for height in heights], width, label=name)
    axes.set_xticks(range(longest + 1), [*map(str, range(longest)), f"≥{longest}"])
    axes.set_xlabel("draft tokens kept in a step")
    axes.set_ylabel("share of steps")
    axes.legend(fontsize="small")
    return True


def _cost(figure: Any, report: dict[str, Any]) -> bool:
    """T(n), as the engine has it and as the steps were, over the budgets each mode chose."""
    curve = report["environment"].get("cost_curve")
    seen = {name: mode["nodes"] for name, mode in report["modes"].items() if mode["nodes"]}
    if not seen and not curve:
        return False
    above, below = figure.subplots(2, 1, sharex=True)
    if curve:
        above.plot([n for n, _ in curve], [1e3 * seconds for _, seconds in curve], "k.-", label="T(n) of the engine")
    for name, entries in seen.items():
        total = sum(entry["steps"] for entry in entries)
        often = [entry for entry in entries if entry["steps"] >= 3] or entries
        above.plot([entry["nodes"] for entry in often], [entry["forward_ms"] for entry in often], ".", label=name)
        below.plot(
            [entry["nodes"] for entry in entries], [entry["steps"] / total for entry in entries], ".-", label=name, alpha=0.8
        )
    above.set_ylabel("forward, ms")
    above.set_ylim(bottom=0)
    above.legend(fontsize="small", ncols=2)
    below.set_ylabel("share of steps")
    below.set_xlabel("nodes verified in a step (budget chosen)")
    return True
