"""An engine without weights: seeded pseudo text at a set acceptance rate, behind the interface of the real one."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import cast

from app.engine.correction import Corrections
from app.engine.errors import ContextLengthExceeded, EngineClosed, InvalidRequest, QueueFull
from app.engine.events import EngineObserver, EventSink, Failed, StepRecord
from app.engine.interface import EngineStatus, ModelInfo
from app.engine.request import GenerationRequest
from app.text.codec import TextCodec
from tests.synthetic_session import SyntheticCodec, SyntheticSession

__all__ = ["SyntheticCodec", "SyntheticEngine"]

LONGEST_RUN = 6


class SyntheticHandle:
    def __init__(self, engine: SyntheticEngine, session: SyntheticSession) -> None:
        self._engine, self._session = engine, session

    def cancel(self) -> None:
        self._session.cancelled = True
        self._engine.wake()


class SyntheticEngine:
    """Behaves as its arguments say.

    acceptance: chance that one more draft token is kept. answer_tokens: EOS comes after the word that reaches it.
    manual: each round waits for allow(). fail_at_step: that round (from 1) raises. step_seconds: pace of a round.
    ready, stuck: what status() says.
    """

    def __init__(
        self,
        *,
        acceptance: float = 0.6,
        answer_tokens: int = 40,
        max_context: int = 4096,
        max_running: int = 8,
        max_queued: int = 64,
        max_nodes: int = 24,
        manual: bool = False,
        fail_at_step: int | None = None,
        step_seconds: float = 0.0,
        name: str = "synthetic",
        seed: int = 0,
        codec: SyntheticCodec | None = None,
        observer: EngineObserver | None = None,
    ) -> None:
        self.acceptance, self.answer_tokens, self.seed = acceptance, answer_tokens, seed
        self.max_running, self.max_queued = max_running, max_queued
        self.manual, self.fail_at_step, self.step_seconds = manual, fail_at_step, step_seconds
        self.codec = cast(TextCodec, codec or SyntheticCodec())
        self.observer = observer
        self.answer: str | None = None  # what every request is answered with, in place of pseudo text
        self.ready, self.stuck, self.retry_after = True, False, 1
        self.corrections: Corrections | None = None
        self.requests: list[GenerationRequest] = []  # all that were ever queued, for tests to look at
        self.rounds = 0
        self.info = ModelInfo(
            name=name,
            architecture="Synthetic",
            dtype="float32",
            device="cpu",
            threads=1,
            parameters=0,
            vocab_size=self.codec.vocab_size,
            max_context=max_context,
            tree_attention=True,
            drafter="racer",
            verifier="exact",
            max_nodes=max_nodes,
        )
        self._waiting: deque[SyntheticSession] = deque()
        self._running: list[SyntheticSession] = []
        self._permits = 0
        self._draining = self._stopping = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="synthetic-worker", daemon=True)
        self._thread.start()

    # -- for tests -------------------------------------------------------------------------------------------------------

    def allow(self, rounds: int = 1_000_000) -> None:
        """Let a manual engine run this many more rounds."""
        with self._condition:
            self._permits += rounds
            self._condition.notify_all()

    def wake(self) -> None:
        with self._condition:
            self._condition.notify_all()

    # -- EngineInterface -------------------------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, sink: EventSink) -> SyntheticHandle:
        prompt, wanted = len(request.prompt_ids), request.stopping.max_tokens
        if prompt + (wanted or 1) > self.info.max_context:
            raise ContextLengthExceeded(prompt, wanted, self.info.max_context)
        nodes = request.speculation.max_nodes
        if nodes is not None and not 1 <= nodes <= self.info.max_nodes:
            raise InvalidRequest(f"`speculative.max_nodes` must be from 1 to {self.info.max_nodes}.", "speculative.max_nodes")
        with self._condition:
            if self._draining or not self._thread.is_alive():
                raise EngineClosed
            if not self._free():
                raise QueueFull(self.retry_after)
            session = SyntheticSession(
                request,
                sink,
                number=len(self.requests),
                seed=self.seed,
                answer_tokens=self.answer_tokens,
                answer=self.answer,
                max_context=self.info.max_context,
                drafter=self.info.drafter,
                max_nodes=self.info.max_nodes,
            )
            self.requests.append(request)
            self._waiting.append(session)
            self._condition.notify_all()
        return SyntheticHandle(self, session)

    def _free(self) -> int:
        running, waiting = (sum(not s.cancelled for s in sessions) for sessions in (self._running, self._waiting))
        return max(0, self.max_queued + max(0, self.max_running - running) - waiting)

    def status(self) -> EngineStatus:
        with self._condition:
            running, waiting, free = len(self._running), len(self._waiting), self._free()
        alive = self._thread.is_alive()
        return EngineStatus(
            running=running,
            waiting=waiting,
            kv_usage_ratio=running / self.max_running,
            heartbeat_age=100.0 if self.stuck else 0.0,
            alive=alive,
            ready=self.ready and alive and not self._draining,
            free_places=free,
            retry_after=self.retry_after,
        )

    def drain(self) -> None:
        with self._condition:
            self._draining = True

    def close(self, grace: float = 0.0) -> None:
        self.drain()
        with self._condition:
            self._condition.wait_for(lambda: not self._running and not self._waiting, grace)
            self._stopping = True
            self._condition.notify_all()
        self._thread.join(10.0)

    # -- the worker ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(self._has_work)
                gone = [session for session in (*self._waiting, *self._running) if session.cancelled or self._stopping]
                stopping = self._stopping
            for session in gone:
                self._end(session, EngineClosed() if stopping and not session.cancelled else None)
            if stopping:
                return
            with self._condition:
                while self._waiting and len(self._running) < self.max_running:
                    self._running.append(self._waiting.popleft())
                running = list(self._running)
                if not running or (self.manual and not self._permits):
                    continue
                self._permits -= self.manual
            self._round(running)

    def _has_work(self) -> bool:
        if self._stopping or any(session.cancelled for session in (*self._waiting, *self._running)):
            return True
        admissible = bool(self._waiting) and len(self._running) < self.max_running
        return admissible or (bool(self._running) and not (self.manual and not self._permits))

    def _round(self, running: list[SyntheticSession]) -> None:
        self.rounds += 1
        if self.step_seconds:
            time.sleep(self.step_seconds)
        if self.rounds == self.fail_at_step:
            for session in running:
                self._end(session, RuntimeError("synthetic failure"))
            return
        stepping = [session for session in running if session.emitted]
        for session in running:
            if not session.emitted:
                self._observe("prefilled", len(session.request.prompt_ids))
                self._observe("first_token", time.monotonic() - session.started)
                session.advance(0)
        kept, budgets, sources, drafted = list[int](), list[int](), Counter[str](), 0
        for session in stepping:
            draft = min(session.nodes - 1, session.budget - session.emitted)
            run = 0
            while run < min(draft, LONGEST_RUN) and session.random.random() < self.acceptance:
                run += 1
            emitted, names = session.advance(run)
            self._observe("inter_token", session.gap, emitted)
            session.steps += 1
            session.drafted += draft
            session.accepted += emitted - 1
            session.histogram[emitted - 1] += 1
            kept.append(emitted - 1)
            sources += names
            drafted += draft
            budgets.append(1 + draft)
        if stepping:
            self._observe("step", self._record(kept, drafted, budgets, sources))
        for session in running:
            if session.reason is not None:
                self._end(session)

    @staticmethod
    def _record(kept: list[int], drafted: int, budgets: list[int], sources: Counter[str]) -> StepRecord:
        """A step of 1 ms; a plain one would take 0.8 ms."""
        sessions = len(kept)
        return StepRecord(
            sessions=sessions,
            drafts=sum(budget > 1 for budget in budgets),
            nodes=drafted + sessions,
            drafted=drafted,
            accepted_lengths=tuple(kept),
            emitted_by_source=dict(sources),
            phase_seconds={"forward": 0.0009},
            budgets=tuple(budgets),
            seconds=0.001,
            plain_seconds=0.0008 * (sum(kept) + sessions) / sessions,
        )

    def _end(self, session: SyntheticSession, error: Exception | None = None) -> None:
        with self._condition:
            if session.ended:
                return
            session.ended = True
            if session in self._running:
                self._running.remove(session)
            else:
                self._waiting.remove(session)
            self._condition.notify_all()
        reason = session.reason or "cancelled"
        seconds = time.monotonic() - session.started
        named = "error" if error is not None else reason
        self._observe("finished", named, seconds, len(session.request.prompt_ids), session.emitted)
        session.sink(session.finished(reason) if error is None else Failed(error))

    def _observe(self, what: str, *arguments: object) -> None:
        if self.observer is not None:
            getattr(self.observer, what)(*arguments)
