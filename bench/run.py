"""One run from the plan to the report: load, measure, write, also when it is cut short."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from app.engine.interruption import report_interruption
from app.engine.models.device import choose_threads
from app.engine.models.loading import load_model
from bench import environment as facts
from bench.benchmark import Benchmark, BenchOutcome
from bench.errors import BenchError
from bench.plan import Plan
from bench.progress import Reporter
from bench.questions import Question, read_questions, spread
from bench.report import build, complete, write
from bench.store import ResultStore

# What a mode keeps of its earlier questions in any case (see app.engine.instruments); a question's n-grams end with it.
CARRIED = ("acceptance estimates", "step costs", "pace of the last steps")


def run(plan: Plan, directory: Path, *, fresh: bool = False) -> dict[str, Any]:
    """Measure what the directory lacks and write the report there; returns it.

    On KeyboardInterrupt the report covers what is complete, and the interrupt goes on. Raises BenchError and ModelLoadError.
    """
    questions = read_questions(plan.data)
    store = ResultStore(directory, plan.settings(), fresh=fresh)
    if store.resumed:
        sys.stderr.write(f"{store.resumed} results of an earlier run are taken from {directory}; --fresh measures anew\n")
    try:
        return _run(plan, BenchOutcome(spread(questions, plan.limit)), questions, store)
    finally:
        store.close()


def _run(plan: Plan, outcome: BenchOutcome, questions: list[Question], store: ResultStore) -> dict[str, Any]:
    with _loaded(plan) as benchmark:
        turns = sum(len(benchmark.turns(question)) for question in outcome.questions)
        try:
            asked = {question.key for question in outcome.questions}
            done = sum(question in asked for question, _, _ in store.results)
            with Reporter(turns * len(plan.modes), done, len(plan.modes)) as reporter:
                benchmark.run(outcome, questions, store, reporter)
        except KeyboardInterrupt:
            _finish(plan, outcome, benchmark, store)
            raise
        if len(outcome.skipped) == len(outcome.questions):
            room = benchmark.engine.info.max_context
            raise BenchError(f"no question fits the context of {room} tokens with --max-tokens {plan.max_tokens}")
        return _finish(plan, outcome, benchmark, store)


def _loaded(plan: Plan) -> Benchmark:
    choose_threads(plan.threads)
    with report_interruption(plan.target):
        target = load_model(plan.target, dtype=plan.dtype, device=plan.device)
        needed = any(mode.needs_draft for mode in plan.modes)
        draft = load_model(plan.draft, dtype=plan.dtype, device=plan.device) if plan.draft and needed else None
        return Benchmark(plan, target, draft)


def _finish(plan: Plan, outcome: BenchOutcome, benchmark: Benchmark, store: ResultStore) -> dict[str, Any]:
    whole = complete(outcome.questions, store.results.values(), plan)
    curve = getattr(benchmark.engine, "cost_curve", None)
    environment = {
        **facts.machine(),
        **facts.model(benchmark.engine.info),
        "settings": plan.settings(),
        "status": "complete" if len(whole) + len(outcome.skipped) == len(outcome.questions) else "partial",
        "state": "warm" if plan.warm else "cold",
        "carried": [*CARRIED, *(["copy-logit rows"] if plan.warm else [])],
        "prior_rows": benchmark.engine.status().drafting.prior_rows,
        "skipped": outcome.skipped,
        "resumed": store.resumed > 0,
        "chat_template": benchmark.engine.codec.has_chat_template,
        "cost_curve": None if curve is None else [[int(n), float(seconds)] for n, seconds in curve],
    }
    report = build(plan, outcome.questions, store.results.values(), environment)
    written = write(report, store.directory)
    sys.stderr.write(f"{len(whole)} of {len(outcome.questions)} questions; wrote {', '.join(map(str, written))}\n")
    return report
