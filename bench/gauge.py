"""Is the speedup gauge honest? The same questions with speculation and plain, by the clock, beside what the metrics say."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from app.engine.cost.neighbours import Watch
from app.engine.interruption import report_interruption
from app.engine.models.device import choose_threads
from app.engine.models.loading import load_model
from app.metrics import Metrics
from bench.benchmark import Benchmark
from bench.engine_runner import Clock, EngineRunner
from bench.errors import BenchError
from bench.modes import PLAIN, Mode
from bench.plan import Plan
from bench.prepare import prepare
from bench.questions import read_questions, spread

TOLERANCE = 0.1  # of the measured speedup
AGREES, DIFFERS, DISTURBED = 0, 1, 3  # exit codes; 2 is wrong usage


@dataclass(frozen=True, slots=True)
class GaugeCheck:
    """What metrics and clock say of the same answers.

    counters: the ratio of the two counters over the whole run. gauge: of its last minute of decoding. measured: seconds that
    plain decoding took per token, times the tokens, over the seconds that speculation took for them. plain_counters: the
    counters' ratio of the plain answers, 1 where the calibration is right. others: cores that other programs used meanwhile,
    or while the steps were calibrated, where they were too many; programs: the busiest of them, by name.
    """

    counters: float
    gauge: float
    measured: float
    questions: int
    tokens: int
    seconds: float
    plain_step_seconds: float
    plain_counters: float
    others: float = 0.0
    programs: Mapping[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """By how much of the measured speedup the counters are off."""
        return self.counters / self.measured - 1.0

    @property
    def exit_code(self) -> int:
        """A difference beside other work is no fault of the gauge: the clock of one answer is not that of the next."""
        if abs(self.error) <= TOLERANCE:
            return AGREES
        return DISTURBED if self.others else DIFFERS

    def describe(self) -> str:
        text = (
            f"{self.questions} questions, {self.tokens} tokens after the first ones in {self.seconds:.1f} s of decoding\n"
            f"speedup by the clock    {self.measured:.3f}\n"
            f"speedup by the counters {self.counters:.3f} ({self.error:+.1%})\n"
            f"racer_speedup_ratio     {self.gauge:.3f} at the end\n"
            f"the same of the plain answers {self.plain_counters:.3f}\n"
            f"racer_plain_step_seconds {self.plain_step_seconds:.4f}"
        )
        if self.others:
            names = ", ".join(f"{name} {cores:.1f}" for name, cores in self.programs.items())
            text += f"\nother programs used {self.others:.1f} cores meanwhile{f' ({names})' if names else ''}"
        return text + VERDICTS[self.exit_code]


VERDICTS = {
    AGREES: "",
    DIFFERS: f"\nthe counters are more than {TOLERANCE:.0%} off the clock",
    DISTURBED: "\nclock and counters differ, but beside such load nothing follows from it: measure again on a quiet machine",
}


def measure(plan: Plan) -> GaugeCheck:
    """Load the plan's target and check the gauge on its questions. Raises BenchError and ModelLoadError."""
    questions = spread(read_questions(plan.data), plan.limit)
    choose_threads(plan.threads)
    with report_interruption(plan.target):
        loaded = Benchmark(plan, load_model(plan.target, dtype=plan.dtype, device=plan.device))
    with loaded as benchmark:
        prepare(benchmark.engine)
        prompts = [benchmark.prompt(question.turns[:1], []) for question in questions]
        room = benchmark.engine.info.max_context - plan.max_tokens
        files = benchmark.measurements
        watch = Watch(0 if files is None else files.spare)
        found = check(benchmark, [prompt for prompt in prompts if len(prompt) <= room])
        others = max(watch.disturbance(), 0.0 if files is None else files.disturbed)
        return replace(found, others=others, programs=watch.busiest())


def check(benchmark: Benchmark, prompts: Sequence[Sequence[int]], clock: Clock = time.perf_counter) -> GaugeCheck:
    """Answer each prompt with speculation and plain, in turn first, after one uncounted answer of each."""
    engine, plan = benchmark.engine, benchmark.plan
    mode = next((mode for mode in plan.modes if mode.name != PLAIN), None)
    if mode is None or mode.peer is not None or not prompts:
        raise BenchError("bench gauge needs one mode of ours beside plain, and questions that fit the context")
    plain = Mode(PLAIN)
    runner = EngineRunner(engine, clock=clock)
    heard = {plain.name: Metrics(), mode.name: Metrics()}

    def run(chosen: Mode, prompt: Sequence[int], observer: Metrics | None) -> tuple[int, float]:
        """Tokens after the first, and their seconds."""
        engine.observer = observer
        with (
            engine.instruments.fixed_costs() if chosen is plain else nullcontext()
        ):  # the gauge must do without plain answers to learn from
            measured = runner.run(chosen, prompt, plan.max_tokens, tenant=chosen.name)
        return len(measured.tokens) - 1, measured.decode_seconds

    for warm in (plain, mode):
        run(warm, prompts[0], None)
    tokens, seconds, plain_seconds, counted = 0, 0.0, 0.0, 0
    for number, prompt in enumerate(prompts):
        results: dict[str, tuple[int, float]] = {}
        for chosen in (plain, mode) if number % 2 else (mode, plain):
            results[chosen.name] = run(chosen, prompt, heard[chosen.name])
        (fast, took), (slow, plain_took) = results[mode.name], results[PLAIN]
        if slow == 0:  # a single token: nothing was decoded
            continue
        counted += 1
        tokens, seconds = tokens + fast, seconds + took
        plain_seconds += fast * plain_took / slow
    if not seconds:
        raise BenchError("every answer ended with its first token")

    return GaugeCheck(
        counters=_counters(heard[mode.name]),
        gauge=_sample(heard[mode.name], "speedup_ratio"),
        measured=plain_seconds / seconds,
        questions=counted,
        tokens=tokens,
        seconds=seconds,
        plain_step_seconds=engine.status().drafting.plain_seconds,
        plain_counters=_counters(heard[PLAIN]),
    )


def _counters(metrics: Metrics) -> float:
    return _sample(metrics, "plain_equivalent_seconds_total") / _sample(metrics, "decode_seconds_total")


def _sample(metrics: Metrics, name: str) -> float:
    return metrics.registry.get_sample_value(f"racer_{name}") or 0.0
