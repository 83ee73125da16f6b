"""A load test from the plan to the report, also when it is cut short."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import httpx

from bench.errors import BenchError
from bench.load.client import Job, LoadClient
from bench.load.driver import WARM_UP, Driver
from bench.load.plan import LoadPlan
from bench.load.progress import LoadBar
from bench.load.report import REPORTS, build, write
from bench.load.sample import Sample
from bench.load.server import ServerError, await_ready, check_ways, first_model
from bench.questions import Question, read_questions, spread

REQUESTS = "requests.jsonl"
Hear = Callable[[Sample], None]


@dataclass(slots=True)
class LoadOutcome:
    """What a run has measured so far. blocks: way -> number of the block -> seconds it took."""

    server: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    samples: list[Sample] = field(default_factory=list)
    blocks: dict[str, dict[int, float]] = field(default_factory=dict)
    gone: bool = False


class SampleLog:
    """DIR/requests.jsonl, one line a request. What an earlier run left there is dropped when the first one is answered."""

    def __init__(self, directory: Path) -> None:
        """Raises BenchError where the directory cannot be written to."""
        self._directory = directory
        self._file: TextIO | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BenchError(f"{directory} cannot be used: {error.strerror or type(error).__name__}") from error

    def add(self, sample: Sample) -> None:
        if self._file is None:
            for name in REPORTS:
                (self._directory / name).unlink(missing_ok=True)
            self._file = (self._directory / REQUESTS).open("w", encoding="utf-8")
        self._file.write(json.dumps(sample.to_json(), separators=(",", ":")) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def run(plan: LoadPlan, directory: Path, api_key: str | None = None) -> dict[str, Any]:
    """Measure, and write requests.jsonl, report.json and report.md into the directory; returns the report.

    On KeyboardInterrupt the report covers what was answered, and the interrupt goes on. Raises BenchError for arguments and
    files, ServerError for a server that cannot be measured; where it went away the report is there all the same.
    """
    jobs = make_jobs(read_questions(plan.data), plan.limit)
    outcome = LoadOutcome()
    log = SampleLog(directory)
    with closing(log), LoadBar(len(jobs) * len(plan.ways)) as bar:

        def hear(sample: Sample) -> None:
            outcome.samples.append(sample)
            log.add(sample)
            bar.hear(sample)

        try:
            asyncio.run(_measure(plan, jobs, outcome, api_key, hear))
        except KeyboardInterrupt:
            if outcome.samples:
                _finish(plan, jobs, outcome, directory)
            raise
    report = _finish(plan, jobs, outcome, directory)
    if outcome.gone:
        raise ServerError(f"the server at {plan.url} went away after {report['answered']} answers; the report has those")
    if not report["answered"]:
        raise ServerError(f"no request was answered: {_first_said(outcome.samples)}")
    return report


def make_jobs(questions: Sequence[Question], limit: int | None) -> list[Job]:
    """The first turns, spread over the categories; from the start again where the limit asks for more than there are."""
    order = spread(questions, limit)
    asked = [order[number % len(order)] for number in range(limit or len(order))]
    return [Job(number, question.key, question.turns[0]) for number, question in enumerate(asked)]


async def _measure(plan: LoadPlan, jobs: list[Job], outcome: LoadOutcome, api_key: str | None, hear: Hear) -> None:
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    bounds = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    # plan.timeout bounds each request as a whole; a proxy of the environment would be measured too
    async with httpx.AsyncClient(base_url=plan.url, headers=headers, limits=bounds, timeout=None, trust_env=False) as http:  # noqa: S113
        outcome.server = await await_ready(http, plan)
        outcome.model = plan.model or await first_model(http, plan)
        client = LoadClient(plan, http, outcome.model)
        await check_ways(http, client, plan)
        warming = Driver(plan, client, lambda sample: None)
        for way in plan.ways:
            await warming.block(way, WARM_UP, [jobs[-1 - number % len(jobs)] for number in range(plan.warmup)])
        client.began = client.clock()
        await _blocks(plan, jobs, outcome, client, Driver(plan, client, hear))


async def _blocks(plan: LoadPlan, jobs: list[Job], outcome: LoadOutcome, client: LoadClient, driver: Driver) -> None:
    """The ways in turn, block by block, each first in its turn, so that whatever drifts hits all alike."""
    size = plan.block_size(len(jobs))
    for number, start in enumerate(range(0, len(jobs), size)):
        shift = number % len(plan.ways)
        for way in (*plan.ways[shift:], *plan.ways[:shift]):
            if driver.gone:
                break
            began = client.clock()
            try:
                await driver.block(way, number, jobs[start : start + size])
            finally:
                outcome.blocks.setdefault(way.name, {})[number] = client.clock() - began
    outcome.gone = driver.gone


def _finish(plan: LoadPlan, jobs: Sequence[Job], outcome: LoadOutcome, directory: Path) -> dict[str, Any]:
    report = build(plan, len(jobs), outcome.samples, outcome.blocks, outcome.server, outcome.model)
    written = [*write(report, directory), *([directory / REQUESTS] if outcome.samples else [])]
    count = f"{report['answered']} answers to {len(jobs) * len(plan.ways)} requests"
    sys.stderr.write(f"{count}; wrote {', '.join(map(str, written))}\n")
    return report


def _first_said(samples: Sequence[Sample]) -> str:
    return next((f"{sample.error}, {sample.said}" for sample in samples if sample.error is not None), "none was sent")
