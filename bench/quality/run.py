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
from bench.prepare import prepare
from bench.progress import minutes
from bench.quality.modes import PLAIN, QualityMode
from bench.quality.score import mean_log_probability
from bench.quality.tasks import Problem
from csd.memory import Entry

WARM_UP_TOKENS = 32
ANSWERS = 2  # changes with what an answer is, so that no run goes on with answers of another kind; 2: code ends with its block


@dataclass(frozen=True, slots=True)
class QualityOutcome:
    """One answer. right: None for open text. cut: it reached the most tokens allowed. agreement: the share that is equal to
    plain's answer before the first difference, of the longer of both."""

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
    cut: bool
    agreement: float | None
    log_probability: float | None


class Results:
    """DIR/quality.jsonl: settings first, then outcomes; a rerun with equal settings reads them back. Raises BenchError."""

    def __init__(self, directory: Path, settings: dict[str, Any], *, fresh: bool = False) -> None:
        self.outcomes: dict[tuple[str, str], QualityOutcome] = {}
        self.answers: dict[str, list[int]] = {}  # plain's
        self.path = directory / "quality.jsonl"
        try:
            self._log = LineLog(self.path, {"settings": settings}, self._resume, fresh=fresh)
        except LineLogError as error:
            raise BenchError(str(error)) from error

    def add(self, outcome: QualityOutcome, answer: list[int]) -> None:
        self._log.add(asdict(outcome) | ({"answer": answer} if outcome.mode == PLAIN else {}))
        self._take(outcome, answer)

    def close(self) -> None:
        self._log.close()

    def _take(self, outcome: QualityOutcome, answer: list[int]) -> None:
        self.outcomes[outcome.problem, outcome.mode] = outcome
        if outcome.mode == PLAIN:
            self.answers[outcome.problem] = answer

    def _resume(self, entry: dict[str, Any]) -> None:
        answer = entry.pop("answer", [])
        self._take(QualityOutcome(**entry), answer)


def run(
    engine: Engine,
    problems: Sequence[Problem],
    modes: Sequence[QualityMode],
    results: Results,
    max_tokens: int,
    table: Sequence[Entry] = (),
    together: int = 1,
    scored: bool = True,
) -> None:
    """Answer what the results lack. KeyboardInterrupt leaves them with every answer that was finished.

    Raises BenchError where no problem fits the context. table: what the correction memory holds before each answer. Without
    that, a mode would rescue by what the other modes had just met on the same problem, and a run that goes on by something
    else than one that was not cut off. together: answers that are decoded at once, which do teach each other. scored:
    whether the target gives its opinion of the answers, for which it reads them once more.
    """
    prompts = [question(engine, problem.prompt) for problem in problems]
    room = engine.info.max_context - max_tokens
    fitting = [(problem, prompt) for problem, prompt in zip(problems, prompts, strict=True) if len(prompt) <= room]
    if not fitting:
        raise BenchError(f"no problem fits the context of {engine.info.max_context} tokens with --max-tokens {max_tokens}")
    if len(fitting) < len(problems):
        sys.stderr.write(f"{len(problems) - len(fitting)} problems are too long for the context and left out\n")
    total = len(fitting) * len(modes)
    left = sum((problem.key, mode.name) not in results.outcomes for problem, _ in fitting for mode in modes)
    if left < total:
        sys.stderr.write(f"{total - left} answers of an earlier run are taken from {results.path}; --fresh measures anew\n")
    if not left:
        return
    prepare(engine)
    start = engine.instruments.learning
    learnt = {mode.name: start.fresh() for mode in modes}  # each mode teaches the engine for itself
    _warm_up(engine, fitting[-1][1], modes, min(WARM_UP_TOKENS, max_tokens))
    started, measured = time.perf_counter(), 0
    for number, first in enumerate(range(0, len(fitting), together)):
        group = fitting[first : first + together]
        shift = number % (len(modes) - 1) if len(modes) > 1 else 0
        for mode in (modes[0], *modes[1 + shift :], *modes[1 : 1 + shift]):
            missing = [(problem, prompt) for problem, prompt in group if (problem.key, mode.name) not in results.outcomes]
            if not missing:
                continue
            _start_from(engine, table)
            with engine.instruments.using(learnt[mode.name]):
                answered = _answers(engine, missing, mode, results.answers, max_tokens, scored)
            for outcome, answer in answered:
                results.add(outcome, answer)
                measured += 1
                remaining = (time.perf_counter() - started) / measured * (left - measured)
                sys.stderr.write(
                    f"[{total - left + measured}/{total}] {outcome.problem} {mode.name}: "
                    f"{outcome.tokens / outcome.seconds:.1f} tokens/s, right {outcome.right}, {outcome.rescues} rescues, "
                    f"about {minutes(remaining)} left\n"
                )


def _start_from(engine: Engine, table: Sequence[Entry]) -> None:
    if engine.corrections is not None:
        engine.corrections.memory.clear()
        engine.corrections.memory.merge(table)


def _warm_up(engine: Engine, prompt: tuple[int, ...], modes: Sequence[QualityMode], tokens: int) -> None:
    """Every mode once, uncounted: the first answer of a process takes longer than any other."""
    for mode in modes:
        engine.generate(_request(prompt, mode, tokens, tenant="warm-up"))


def _request(
    prompt: tuple[int, ...], mode: QualityMode, tokens: int, tenant: str, stop: tuple[str, ...] = ()
) -> GenerationRequest:
    return GenerationRequest(
        prompt, SamplingParams(temperature=0.0), StopParams(max_tokens=tokens, stop=stop), mode.speculation, tenant=tenant
    )


def _answers(
    engine: Engine,
    asked: Sequence[tuple[Problem, tuple[int, ...]]],
    mode: QualityMode,
    plain: dict[str, list[int]],
    max_tokens: int,
    scored: bool,
) -> list[tuple[QualityOutcome, list[int]]]:
    """The problems' answers, decoded together. Each is given the share of the time that its tokens are of all tokens."""
    requests = [_request(prompt, mode, max_tokens, tenant=mode.name, stop=problem.stop) for problem, prompt in asked]
    started = time.perf_counter()
    completions = engine.generate_all(requests)
    seconds_per_token = (time.perf_counter() - started) / sum(max(1, len(done.token_ids)) for done in completions)
    target, _, _ = engine.instruments.both_models()
    found = []
    for (problem, prompt), done in zip(asked, completions, strict=True):
        answer, stats = list(done.token_ids), done.finished.stats
        reference = None if mode.name == PLAIN else plain.get(problem.key)
        outcome = QualityOutcome(
            problem=problem.key,
            task=problem.task,
            mode=mode.name,
            right=problem.right(done.text),
            tokens=len(answer),
            seconds=max(1, len(answer)) * seconds_per_token,
            steps=stats.num_steps,
            accepted=stats.num_accepted_tokens,
            drafted=stats.num_draft_tokens,
            rescues=stats.rescues,
            refused=stats.refused_by_gate,
            cut=done.finished.reason == "length",
            agreement=None if reference is None else _agreement(answer, reference),
            log_probability=mean_log_probability(target, prompt, answer, engine.info.vocab_size) if scored else None,
        )
        found.append((outcome, answer))
    return found


def _agreement(answer: Sequence[int], plain: Sequence[int]) -> float:
    """Share of tokens before the first difference, of the longer answer: 1 for equal answers alone."""
    shorter = min(len(answer), len(plain))
    same = next((index for index in range(shorter) if answer[index] != plain[index]), shorter)
    return same / max(len(answer), len(plain)) if answer or plain else 1.0
