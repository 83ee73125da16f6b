"""Runs our own modes: one engine, one request per answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from app.engine.engine import Engine
from app.engine.events import Delta, Event, Failed, Finished
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from bench.errors import BenchError
from bench.modes import Mode
from bench.recorder import Recorder
from bench.result import Measurement

Clock = Callable[[], float]


class _Inbox:
    """Keeps the events of one answer with the time of the first; wakes the caller only at the end, so nobody competes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.tokens: list[int] = []
        self.first_at = 0.0
        self.ended_at = 0.0
        self.end: Finished | Failed | None = None
        self.done = threading.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Delta):
            self.first_at = self.first_at or self._clock()
            self.tokens.extend(event.token_ids)
            return
        self.ended_at = self._clock()
        self.end = event
        self.done.set()


class EngineRunner:
    """Answers prompts with one engine, whose observer it becomes."""

    def __init__(self, engine: Engine, *, temperature: float = 0.0, seed: int = 0, clock: Clock = time.perf_counter) -> None:
        self._engine = engine
        self._clock = clock
        self._sampling = SamplingParams(temperature=temperature, seed=seed)
        self._recorder = Recorder()
        engine.observer = self._recorder

    def run(self, mode: Mode, prompt: Sequence[int], max_tokens: int, tenant: str) -> Measurement:
        """One answer. tenant: whose warm layer it reads and writes, where the engine keeps any."""
        request = GenerationRequest(
            tuple(prompt), self._sampling, StopParams(max_tokens=max_tokens), _speculation(mode), tenant=tenant
        )
        self._recorder.reset()
        inbox = _Inbox(self._clock)
        started = self._clock()
        handle = self._engine.submit(request, inbox)
        try:
            inbox.done.wait()
        finally:
            handle.cancel()
        if isinstance(inbox.end, Failed):
            raise inbox.end.error
        if inbox.end is None or inbox.end.reason == "cancelled":
            raise BenchError(f"mode {mode.name}: the engine gave the answer up")
        stats = inbox.end.stats
        return Measurement(
            tokens=tuple(inbox.tokens),
            seconds=inbox.ended_at - started,
            decode_seconds=inbox.ended_at - inbox.first_at,
            steps=stats.num_steps,
            step_tokens=stats.num_accepted_tokens + stats.num_steps,
            drafted=stats.num_draft_tokens,
            histogram=stats.acceptance_histogram,
            sources=dict(stats.tokens_by_source),
            phase_seconds=dict(self._recorder.phase_seconds),
            nodes=dict(self._recorder.nodes),
        )


def _speculation(mode: Mode) -> SpeculationParams:
    if mode.plain:
        return SpeculationParams(drafter="none")
    return SpeculationParams(
        drafter=mode.drafted or "racer",
        policy=mode.policy,
        max_nodes=mode.nodes,
        fixed_budget=mode.nodes is not None,
        gamma=mode.gamma,
    )
