"""From results to figures: what one mode did on a set of questions, next to plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.engine.events import PHASES
from bench.result import Measurement, Result
from bench.statistics import bootstrap_median, bootstrap_total, median, ratio

Runs = Mapping[str, Sequence[Result]]  # question -> the results of one mode on its turns, in order


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """One mode on one question, all turns together. divergence: index of the first token that is not plain's, or None."""

    tokens: int
    seconds: float
    decode_seconds: float
    steps: int
    step_tokens: int
    divergence: int | None

    @property
    def rate(self) -> float:
        """Tokens per second, prefill included."""
        return self.tokens / self.seconds

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second after the first one; None for answers of one token."""
        return ratio(self.step_tokens, self.decode_seconds) if self.steps else None


def answer(own: Sequence[Result], plain: Sequence[Result]) -> AnswerFigures:
    measured = [result.measured for result in own]
    return AnswerFigures(
        tokens=sum(len(one.tokens) for one in measured),
        seconds=sum(one.seconds for one in measured),
        decode_seconds=sum(one.decode_seconds for one in measured),
        steps=sum(one.steps for one in measured),
        step_tokens=sum(_behind_first(one) for one in measured),
        divergence=_divergence(own, plain),
    )


def summary(own: Runs, plain: Runs, questions: Sequence[str], seed: int) -> dict[str, Any]:
    """The figures of one mode over the questions; None where there is nothing to tell. See report.md for what each means."""
    answers = [answer(own[question], plain[question]) for question in questions]
    bases = [answer(plain[question], plain[question]) for question in questions]
    pairs = list(zip(answers, bases, strict=True))
    speedups = [mine.rate / base.rate for mine, base in pairs]
    decoding = [mine.decode_rate / base.decode_rate for mine, base in pairs if mine.decode_rate and base.decode_rate]
    low, high = bootstrap_median(speedups, seed)
    total_low, total_high = bootstrap_total(
        [(one.tokens, one.seconds) for one in answers], [(base.tokens, base.seconds) for base in bases], seed
    )
    tokens, seconds = sum(one.tokens for one in answers), sum(one.seconds for one in answers)
    plain_rate = ratio(sum(base.tokens for base in bases), sum(base.seconds for base in bases))
    measured = [result.measured for question in questions for result in own[question]]
    steps, step_tokens = sum(one.steps for one in measured), sum(one.step_tokens for one in measured)
    mats = [_mat([result.measured for result in own[question]]) for question in questions]
    drafted = [one.drafted for one in measured if one.drafted is not None]
    rate = ratio(tokens, seconds)
    return {
        "speedup": median(speedups),
        "speedup_low": low,
        "speedup_high": high,
        "speedup_total": ratio(rate or 0.0, plain_rate or 0.0),
        "speedup_total_low": total_low,
        "speedup_total_high": total_high,
        "speedup_decode": median(decoding),
        "mat": ratio(step_tokens, steps),
        "mat_mean": ratio(sum(mat for mat in mats if mat is not None), sum(mat is not None for mat in mats)),
        "tokens_per_s": rate,
        "tokens_per_s_decode": ratio(sum(one.step_tokens for one in answers), sum(one.decode_seconds for one in answers)),
        "drafted_per_step": ratio(sum(drafted), steps) if drafted else None,
        "equal_to_plain": ratio(sum(one.divergence is None for one in answers), len(answers)),
        "first_divergence": min((one.divergence for one in answers if one.divergence is not None), default=None),
        "questions": len(questions),
        "tokens": tokens,
        "seconds": seconds,
    }


def step_ms(measured: Sequence[Measurement]) -> dict[str, float]:
    """Milliseconds a verify step spends in each phase and in between (`other`); empty where the phases are not known."""
    known = [one for one in measured if one.phase_seconds is not None]
    steps = sum(one.steps for one in known)
    if not steps:
        return {}
    phases = {phase: sum((one.phase_seconds or {}).get(phase, 0.0) for one in known) for phase in PHASES}
    total = sum(one.decode_seconds for one in known)
    phases["other"] = max(0.0, total - sum(phases.values()))
    return {phase: 1e3 * seconds / steps for phase, seconds in phases.items()} | {"total": 1e3 * total / steps}


def sources(measured: Sequence[Measurement]) -> dict[str, float]:
    """Share of all emitted tokens by source; empty where it is not known."""
    counts: dict[str, int] = {}
    for one in measured:
        for source, tokens in (one.sources or {}).items():
            counts[source] = counts.get(source, 0) + tokens
    total = sum(counts.values())
    return {source: tokens / total for source, tokens in counts.items()} if total else {}


def histogram(measured: Sequence[Measurement]) -> list[int]:
    """[a] = verify steps that kept a draft tokens."""
    counts = [0] * max((len(one.histogram) for one in measured), default=0)
    for one in measured:
        for accepted, steps in enumerate(one.histogram):
            counts[accepted] += steps
    return counts


def nodes(measured: Sequence[Measurement]) -> list[dict[str, float]]:
    """By number of nodes verified in a step: steps, and the mean milliseconds of their forward passes."""
    sums: dict[int, tuple[int, float]] = {}
    for one in measured:
        for size, (steps, seconds) in (one.nodes or {}).items():
            before = sums.get(size, (0, 0.0))
            sums[size] = before[0] + steps, before[1] + seconds
    return [
        {"nodes": size, "steps": steps, "forward_ms": 1e3 * seconds / steps} for size, (steps, seconds) in sorted(sums.items())
    ]


def _mat(measured: Sequence[Measurement]) -> float | None:
    return ratio(sum(one.step_tokens for one in measured), sum(one.steps for one in measured))


def _behind_first(one: Measurement) -> int:
    return max(0, len(one.tokens) - 1)


def _divergence(own: Sequence[Result], plain: Sequence[Result]) -> int | None:
    """Index in the first turn whose ids differ, or None. An answer that only ends earlier differs at its end."""
    for mine, base in zip(own, plain, strict=True):
        a, b = mine.measured.tokens, base.measured.tokens
        if a != b:
            return next((index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return None
