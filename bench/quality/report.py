"""The table of a quality run: speed and price side by side, per task and overall."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bench.markdown import cell
from bench.quality.modes import PLAIN
from bench.quality.run import QualityOutcome
from bench.statistics import bootstrap_median, median, ratio

LEGEND = """\
- speedup: median over problems of the ratio of tokens/s to plain's, with its bootstrap 95 % interval; of all answers that are
  decoded at once, without an interval, where more than one is
- MAT: tokens emitted by verify steps over verify steps; accepted: share of the drafted tokens that were kept
- rescues per 100 tokens: draft tokens kept in place of the target's choice
- right: answers that pass the tests or equal the reference, with their 95 % interval (Wilson)
- cut: answers that reached --max-tokens; one that is cut seldom is right
- as plain: mean share of an answer before it first differs from plain's, of the longer of both
- mean log p: the target's own mean log-probability of the tokens
- modes: plain, no speculation; sd, exact with the draft model; csd, memory and gate; ocm and scg, one of them alone; static,
  a draft token is kept from a fixed share of the likeliest's probability on; racer and hybrid, those drafters, exact or
  with +csd"""


def wilson(right: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share (Wilson); (0, 1) where nothing was counted."""
    if of == 0:
        return 0.0, 1.0
    share = right / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return max(0.0, middle - half), min(1.0, middle + half)


def samples_to_tell(share: float, difference: float) -> int:
    """Problems that a paired comparison needs to tell such a difference with 80 % power at 5 %, in the worst case that the
    answers of both modes are independent."""
    if difference <= 0:
        return 0
    return math.ceil(2 * share * (1 - share) * ((1.96 + 0.84) / difference) ** 2)


def build(
    outcomes: Sequence[QualityOutcome], modes: Sequence[str], seed: int, environment: dict[str, Any] | None = None
) -> dict[str, Any]:
    """{"environment": {...}, "modes": {mode: {"overall": {...}, "tasks": {task: {...}}}}} over the problems that every
    mode answered."""
    by_mode = {mode: {one.problem: one for one in outcomes if one.mode == mode} for mode in modes}
    common = [problem for problem in by_mode[PLAIN] if all(problem in runs for runs in by_mode.values())]
    tasks = list(dict.fromkeys(by_mode[PLAIN][problem].task for problem in common))
    report: dict[str, Any] = {"problems": len(common), "environment": environment or {}, "modes": {}}
    for mode, runs in by_mode.items():
        figures = {"overall": _figures(runs, by_mode[PLAIN], common, seed), "tasks": {}}
        for task in tasks:
            chosen = [problem for problem in common if runs[problem].task == task]
            figures["tasks"][task] = _figures(runs, by_mode[PLAIN], chosen, seed)
        report["modes"][mode] = figures
        if report["environment"].get("together", 1) > 1:  # answers of one group have one rate: they are no samples of their own
            for one in (figures["overall"], *figures["tasks"].values()):
                one["speedup_low"] = one["speedup_high"] = None
    return report


def _figures(
    runs: dict[str, QualityOutcome], plain: dict[str, QualityOutcome], problems: Sequence[str], seed: int
) -> dict[str, Any]:
    own = [runs[problem] for problem in problems]
    speedups = [(mine.tokens / mine.seconds) / (plain[mine.problem].tokens / plain[mine.problem].seconds) for mine in own]
    low, high = bootstrap_median(speedups, seed)
    judged = [one for one in own if one.right is not None]
    right = sum(one.right is True for one in judged)
    steps = sum(one.steps for one in own)
    scores = [one.log_probability for one in own if one.log_probability is not None]
    agreements = [one.agreement for one in own if one.agreement is not None]
    tokens = sum(one.tokens for one in own)
    return {
        "problems": len(own),
        "speedup": median(speedups),
        "speedup_low": low,
        "speedup_high": high,
        "tokens_per_s": ratio(tokens, sum(one.seconds for one in own)),
        "mat": ratio(sum(one.accepted for one in own) + steps, steps),
        "acceptance_rate": ratio(sum(one.accepted for one in own), sum(one.drafted for one in own)),
        "rescues_per_100_tokens": ratio(100 * sum(one.rescues for one in own), tokens),
        "refused_by_gate": sum(one.refused for one in own),
        "cut": sum(one.cut for one in own),
        "judged": len(judged),
        "right": right,
        "accuracy": ratio(right, len(judged)),
        "accuracy_interval": wilson(right, len(judged)) if judged else None,
        "agreement_with_plain": ratio(sum(agreements), len(agreements)),
        "mean_log_probability": ratio(sum(scores), len(scores)),
    }


def as_markdown(report: dict[str, Any]) -> str:
    """One table per task, and one of all."""
    first = next(iter(report["modes"].values()))
    parts = [f"# Quality on {report['problems']} problems", *_facts(report["environment"])]
    parts += ["## All", _table(report["modes"], None), *_doubts(report["modes"])]
    for task in first["tasks"]:
        parts += [f"## {cell(task)}", _table(report["modes"], task)]
    parts.append(LEGEND)
    return "\n\n".join(parts) + "\n"


def _facts(environment: dict[str, Any]) -> list[str]:
    """What was measured and where; nothing for a report made without it."""
    if not environment:
        return []
    draft = environment["draft"] or "none"
    said = [
        f"target {environment['model']} ({environment['params'] / 1e6:.0f} M parameters), draft model {draft}",
        f"{environment['dtype']} on {environment['device']}, {environment['cpu']}, {environment['threads']} threads",
        f"lambda {environment['lambda']}, tau {environment['tau']}, table {environment['table'] or 'empty'}, greedy, "
        f"{environment['max_tokens']} tokens at most, {environment['together']} at once",
        "each mode keeps its own acceptance estimates and step costs from problem to problem",
        f"measured {environment['date']}",
    ]
    return ["\n".join(f"- {line}" for line in said), f"    {environment['command']}"]


def _doubts(modes: dict[str, Any]) -> list[str]:
    """For each mode whose accuracy is not plain's: how many problems it would take to tell whether that is more than chance."""
    plain = modes[PLAIN]["overall"]["accuracy"]
    said = []
    for name, figures in modes.items():
        share = figures["overall"]["accuracy"]
        if share is not None and plain is not None and share != plain:
            needed = samples_to_tell((share + plain) / 2, abs(share - plain))
            said.append(
                f"- {name}: {100 * (share - plain):+.0f} points against plain; to tell that from chance takes {needed} problems"
            )
    return ["\n".join(said)] if said else []


def _table(modes: dict[str, Any], task: str | None) -> str:
    head = "| mode | speedup | 95 % | MAT | accepted | rescues per 100 tokens | right | 95 % | cut | as plain | mean log p |"
    rows = [head, "|---|---|---|---|---|---|---|---|---|---|---|"]
    for name, figures in modes.items():
        one = figures["overall"] if task is None else figures["tasks"][task]
        interval = one["accuracy_interval"]
        cells = [
            name,
            _number(one["speedup"], 2, "x"),
            f"{_number(one['speedup_low'], 2)} to {_number(one['speedup_high'], 2)}",
            _number(one["mat"], 2),
            _percent(one["acceptance_rate"]),
            _number(one["rescues_per_100_tokens"], 1),
            f"{one['right']} of {one['judged']}" if one["judged"] else "-",
            f"{_percent(interval[0])} to {_percent(interval[1])}" if interval else "-",
            f"{one['cut']} of {one['problems']}",
            _percent(one["agreement_with_plain"]),
            _number(one["mean_log_probability"], 3),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _number(value: float | None, digits: int, unit: str = "") -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
