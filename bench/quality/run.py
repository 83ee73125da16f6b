"""The quality harness: each mode answers each problem, interleaved; answers are judged, scored and kept as they come."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.calibration.linelog import LineLog, LineLogError
from app.calibration.run import question
from app.engine.engine import Engine
from app.engine.request import GenerationRequest, SamplingParams, StopParams
from bench.errors import BenchError
from bench.quality.modes import PLAIN, QualityMode
from bench.quality.score import mean_log_probability
from bench.quality.tasks import Problem
from csd.memory import Entry


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answer. right: None for open text. agreement: share of plain's tokens before the first that differs."""

    problem: str
    task: str
    mode: str
    right: bool | None
    tokens: int
    seconds: float
    steps: int
    accepted: int
    drafted: int
    rescues: int
    refused: int
    agreement: float | None
    log_probability: float | None


class Results:
    """DIR/quality.jsonl: settings first, then outcomes; a rerun with equal settings reads them back. Raises BenchError."""

    def __init__(self, directory: Path, settings: dict[str, Any], *, fresh: bool = False) -> None:
        self.outcomes: dict[tuple[str, str], Outcome] = {}
        self.answers: dict[str, list[int]] = {}  # plain's
        self.path = directory / "quality.jsonl"
        try:
            self._log = LineLog(self.path, {"settings": settings}, self._resume, fresh=fresh)
        except LineLogError as error:
            raise BenchError(str(error)) from error

    def add(self, outcome: Outcome, answer: list[int]) -> None:
        self._log.add(asdict(outcome) | ({"answer": answer} if outcome.mode == PLAIN else {}))
        self._take(outcome, answer)

    def close(self) -> None:
        self._log.close()

    def _take(self, outcome: Outcome, answer: list[int]) -> None:
        self.outcomes[outcome.problem, outcome.mode] = outcome
        if outcome.mode == PLAIN:
            self.answers[outcome.problem] = answer

    def _resume(self, entry: dict[str, Any]) -> None:
        answer = entry.pop("answer", [])
        self._take(Outcome(**entry), answer)


def run(
    engine: Engine,
    problems: Sequence[Problem],
    modes: Sequence[QualityMode],
    results: Results,
    max_tokens: int,
    table: Sequence[Entry] = (),
) -> None:
    """Answer what the results lack. KeyboardInterrupt leaves them with every answer that was finished.

    table: what the correction memory holds before each answer. Without that, a mode would rescue by what the other modes had
    just met on the same problem, and a run that goes on by something else than one that was not cut off.
    """
    engine.settle()
    for number, problem in enumerate(problems):
        prompt = question(engine, problem.prompt)
        if len(prompt) + max_tokens > engine.info.max_context:
            continue
        shift = number % (len(modes) - 1) if len(modes) > 1 else 0
        for mode in (modes[0], *modes[1 + shift :], *modes[1 : 1 + shift]):
            if (problem.key, mode.name) in results.outcomes:
                continue
            if engine.corrections is not None:
                engine.corrections.memory.clear()
                engine.corrections.memory.merge(table)
            outcome, answer = _answer(engine, problem, prompt, mode, results.answers.get(problem.key), max_tokens)
            results.add(outcome, answer)
            sys.stderr.write(
                f"[{number + 1}/{len(problems)}] {problem.key} {mode.name}: {outcome.tokens / outcome.seconds:.1f} tokens/s, "
                f"right {outcome.right}, {outcome.rescues} rescues\n"
            )


def _answer(
    engine: Engine,
    problem: Problem,
    prompt: tuple[int, ...],
    mode: QualityMode,
    plain: Sequence[int] | None,
    max_tokens: int,
) -> tuple[Outcome, list[int]]:
    request = GenerationRequest(
        prompt, SamplingParams(temperature=0.0), StopParams(max_tokens=max_tokens), mode.speculation, tenant=mode.name
    )
    started = time.perf_counter()
    done = engine.generate(request)
    seconds = time.perf_counter() - started
    stats = done.finished.stats
    answer = list(done.token_ids)
    target, _, _ = engine.both_models()
    return (
        Outcome(
            problem=problem.key,
            task=problem.task,
            mode=mode.name,
            right=problem.right(done.text),
            tokens=len(answer),
            seconds=seconds,
            steps=stats.num_steps,
            accepted=stats.num_accepted_tokens,
            drafted=stats.num_draft_tokens,
            rescues=stats.rescues,
            refused=stats.refused_by_gate,
            agreement=None if plain is None or mode.name == PLAIN else _agreement(answer, plain),
            log_probability=mean_log_probability(target, prompt, answer, engine.info.vocab_size),
        ),
        answer,
    )


def _agreement(answer: Sequence[int], plain: Sequence[int]) -> float:
    """Share of plain's tokens before the first difference."""
    same = next((index for index, (a, b) in enumerate(zip(answer, plain, strict=False)) if a != b), None)
    if same is None:
        same = min(len(answer), len(plain))
    return same / len(plain) if plain else 1.0
