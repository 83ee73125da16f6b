"""The benchmark: every mode on every question, interleaved, so that whatever drifts hits all modes alike."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from app.engine.cost.measurements import Measurements
from app.engine.engine import Engine, EngineConfig
from app.engine.instruments import Learning
from app.engine.models.cache import cache_directory
from app.engine.models.loading import LoadedModel
from app.text.codec import TextCodec
from bench.engine_runner import EngineRunner
from bench.memory import PeakMemory
from bench.modes import PLAIN, Mode
from bench.peer_runner import PeerRunner
from bench.plan import Plan
from bench.prepare import prepare
from bench.questions import Question, spread
from bench.result import Measurement, Result
from bench.store import ResultStore

MAX_NODES = 128  # the engine's largest budget, and so the default of `auto`
WARM_UP, WARM_UP_TOKENS = "warm-up", 32
Hear = Callable[[Result], None]


@dataclass(slots=True)
class BenchOutcome:
    """What a run knows beside its results. skipped: questions that do not fit the context."""

    questions: list[Question]
    skipped: list[str] = field(default_factory=list)


def engine_config(plan: Plan) -> EngineConfig:
    """The engine the plan asks for: one session at a time, and budgets large enough for every mode."""
    most = max([MAX_NODES, *(mode.nodes or 0 for mode in plan.modes)])
    config = EngineConfig(max_running=1, max_nodes=most, warm_start=plan.warm)
    return config if plan.prior_rows is None else replace(config, prior_rows=plan.prior_rows)


class Benchmark:
    """A loaded target under all modes of a plan. Close it, or use it in a `with`."""

    def __init__(
        self, plan: Plan, target: LoadedModel, draft: LoadedModel | None = None, config: EngineConfig | None = None
    ) -> None:
        self.plan = plan
        self._codec: TextCodec = target.codec
        self._memory = PeakMemory(target.device)
        models = [target] if draft is None else [target, draft]
        attention = [loaded.model.config._attn_implementation for loaded in models]
        self.measurements = None if config else Measurements(cache_directory(), target)
        drafted = draft if any(mode.drafted for mode in plan.modes) else None
        self.engine = Engine(
            target,
            config or engine_config(plan),
            measurements=self.measurements,
            draft=drafted,
            draft_measurements=None if config or drafted is None else Measurements(cache_directory(), drafted, drafts=True),
        )
        self._start = self.engine.instruments.learning
        self._learnt: dict[str, Learning] = {}  # what each mode taught the engine: by tenant, which is the mode's name
        self._ours = EngineRunner(self.engine, temperature=plan.temperature, seed=plan.seed)
        self._peers = PeerRunner(target, attention, draft, temperature=plan.temperature, seed=plan.seed)

    def __enter__(self) -> Benchmark:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()
        gc.unfreeze()

    def run(self, outcome: BenchOutcome, questions: Sequence[Question], store: ResultStore, hear: Hear) -> None:
        """Run what the store lacks; hear is told of each new result. outcome is filled as the run goes.

        questions: all there are; outcome.questions are the ones that count. One that does not count, where there is one,
        warms every mode up.
        """
        chosen = {question.key for question in outcome.questions}
        others = [question for question in spread(questions, None) if question.key not in chosen]
        if all(self._complete(store, question) for question in outcome.questions):
            return
        prepare(self.engine)
        self._warm_up([*others, *reversed(outcome.questions)])
        gc.collect()
        gc.freeze()  # the libraries' million objects are not looked through again before each answer
        for number, question in enumerate(outcome.questions):
            if self._complete(store, question):
                continue
            shift = number % len(self.plan.modes)
            order = (*self.plan.modes[shift:], *self.plan.modes[:shift])
            if not self._answer(question, order, store, hear):
                outcome.skipped.append(question.key)

    def turns(self, question: Question) -> tuple[str, ...]:
        """The turns of it that are asked."""
        return question.turns if self.plan.turns else question.turns[:1]

    def _complete(self, store: ResultStore, question: Question) -> bool:
        turns = range(len(self.turns(question)))
        return all((question.key, turn, mode.name) in store.results for turn in turns for mode in self.plan.modes)

    def _answer(self, question: Question, order: Sequence[Mode], store: ResultStore, hear: Hear) -> bool:
        """All modes on all turns; later turns follow plain's answers, so that every mode reads the same. False: too long."""
        answers: list[str] = []
        for turn in range(len(self.turns(question))):
            prompt = self.prompt(question.turns[: turn + 1], answers)
            if len(prompt) + self.plan.max_tokens > self.engine.info.max_context:
                return False
            for place, mode in enumerate(order):
                if (question.key, turn, mode.name) in store.results:
                    continue
                measured = self._measure(mode, prompt, self.plan.max_tokens, tenant=mode.name)
                result = Result(question.key, question.category, turn, mode.name, place, len(prompt), measured)
                store.add(result)
                hear(result)
            answers.append(self._codec.decode(store.results[question.key, turn, PLAIN].measured.tokens))
        return True

    def _warm_up(self, candidates: Sequence[Question]) -> None:
        """Every mode once, uncounted, on the first question that fits; what that teaches is dropped."""
        for question in candidates:
            prompt = self.prompt(question.turns[:1], [])
            tokens = min(WARM_UP_TOKENS, self.plan.max_tokens)
            if len(prompt) + tokens <= self.engine.info.max_context:
                for mode in self.plan.modes:
                    self._measure(mode, prompt, tokens, tenant=WARM_UP)
                self._learnt.pop(WARM_UP, None)
                return

    def prompt(self, turns: Sequence[str], answers: Sequence[str]) -> list[int]:
        """Token ids of a conversation up to the answer to its last turn; plain text where the model has no chat template."""
        if not self._codec.has_chat_template:
            text = "\n\n".join(part for pair in zip(turns, [*answers, ""], strict=True) for part in pair if part)
            return self._codec.encode(text)
        messages = [{"role": "user", "content": turns[0]}]
        for answer, turn in zip(answers, turns[1:], strict=True):
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
        return self._codec.encode_chat(messages)

    def _measure(self, mode: Mode, prompt: Sequence[int], tokens: int, tenant: str) -> Measurement:
        """tenant: whose state is used and kept, in the engine's warm layer, where it has any, and in what it learns."""
        learning = self._learnt.setdefault(tenant, self._start.fresh())
        self._memory.start()
        with _without_gc(), self.engine.instruments.using(learning):
            if mode.peer is not None:
                measured = self._peers.run(mode, prompt, tokens)
            else:
                measured = self._ours.run(mode, prompt, tokens, tenant)
        return replace(measured, peak_bytes=self._memory.peak())


@contextmanager
def _without_gc() -> Iterator[None]:
    gc.collect()
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
