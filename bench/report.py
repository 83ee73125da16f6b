"""The report: report.json, its tables in report.md, and the plots."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.markdown import as_markdown
from bench.modes import PLAIN
from bench.plan import Plan
from bench.plots import draw
from bench.questions import Question
from bench.result import Result
from bench.summary import histogram, nodes, sources, step_ms, summary
from csd.files import write_whole

METHOD = (
    "Modes ran interleaved question by question in one process, their order rotated; one question before them warmed up and "
    "does not count. What the engine learns of its model and machine is each mode's own, from the engine's start on. "
    "tokens_per_s and speedup are of the whole answer, prefill included; speedup is the median over questions "
    "of the ratio of tokens/s to plain's, low and high its bootstrap 95% interval, speedup_total the ratio of tokens/s over "
    "all questions (of times, where the answers are equal) with an interval of its own, speedup_decode the median "
    "without the prefill. mat: tokens emitted "
    "by verify steps over verify steps, mat_mean the mean of the questions'. For hf modes it is tokens over forward passes, "
    "the first of which reads the prompt. equal_to_plain: share of questions with plain's token ids."
)


def complete(questions: Sequence[Question], results: Iterable[Result], plan: Plan) -> list[Question]:
    """The questions that every mode has answered, all asked turns of them: all modes are judged on the same ones."""
    done = {result.key for result in results}
    return [
        question
        for question in questions
        if all(
            (question.key, turn, mode.name) in done
            for turn in range(len(question.turns) if plan.turns else 1)
            for mode in plan.modes
        )
    ]


def build(plan: Plan, questions: Sequence[Question], results: Iterable[Result], environment: dict[str, Any]) -> dict[str, Any]:
    """The content of report.json over the complete ones of `questions`."""
    results = list(results)
    whole = complete(questions, results, plan)
    asked = {question.key for question in whole}
    runs: dict[str, dict[str, list[Result]]] = {mode.name: {} for mode in plan.modes}
    for result in sorted(results, key=lambda result: result.turn):
        if result.question in asked:
            runs[result.mode].setdefault(result.question, []).append(result)
    groups: dict[str, list[str]] = {}
    for question in whole:
        groups.setdefault(question.category, []).append(question.key)
    everything = [question.key for question in whole]
    modes = {}
    for mode in plan.modes:
        own = runs[mode.name]
        measured = [result.measured for question in everything for result in own[question]]
        modes[mode.name] = {
            "overall": summary(own, runs[PLAIN], everything, plan.seed),
            "categories": {name: summary(own, runs[PLAIN], keys, plan.seed) for name, keys in groups.items()},
            "step_ms": step_ms(measured),
            "sources": sources(measured),
            "acceptance_histogram": histogram(measured),
            "nodes": nodes(measured),
            "peak_memory_bytes": max((one.peak_bytes for one in measured if one.peak_bytes is not None), default=None),
        }
    return {"environment": {**environment, "questions": len(whole), "method": METHOD}, "modes": modes}


def write(report: dict[str, Any], directory: Path) -> list[Path]:
    """Write report.json, report.md and the plots; returns their paths."""
    plots = draw(report, directory)
    write_whole(directory / "report.json", json.dumps(report, indent=2) + "\n")
    write_whole(directory / "report.md", as_markdown(report, [plot.name for plot in plots]))
    return [directory / "report.json", directory / "report.md", *plots]
