"""The generations that wait and the sessions that run: how each begins, gives way and ends."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from functools import partial

from app.engine.errors import EngineClosed, EngineFailed, GenerationLost
from app.engine.events import EndReason, FinishReason
from app.engine.generation import Generation
from app.engine.models.device import empty_cache
from app.engine.scheduler.health import Failures, failure_of, is_unexpected, release_frames
from app.engine.scheduler.heap import HeapTrim
from app.engine.scheduler.reporter import SafeObserver
from app.engine.scheduler.wait import WaitEstimate
from app.engine.session import Session
from app.engine.slots import Slots
from app.text.errors import GrammarError

logger = logging.getLogger(__name__)


class Pool:
    """Both lists change under `wake`, and by the worker thread alone, but for what `submit` appends to the queue."""

    def __init__(self, slots: Slots, failures: Failures, reporter: SafeObserver, *, max_running: int, max_queued: int) -> None:
        self.slots = slots
        self.failures = failures
        self.reporter = reporter
        self.max_running = max_running
        self.max_queued = max_queued
        self.wake = threading.Condition()
        self.waiting: deque[Generation] = deque()
        self.running: list[Session] = []  # oldest first
        self.opening: Generation | None = None  # no longer in the queue, and not running yet
        self.heap = HeapTrim()
        self.turns = WaitEstimate()
        self.failed = False  # the worker gave up
        self.stopping = False  # the engine is closed
        self.preemptions = 0  # times that a session gave its KV rows up and had its text read again

    # -- counts ----------------------------------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """Generations that have a slot, or are getting one."""
        return len(self.running) + (self.opening is not None)

    def free(self) -> int:
        """Generations that could be queued now."""
        # a cancelled one leaves within a step, so its place is free; what can start at once does not count as queued
        opening = [] if self.opening is None else [self.opening]
        running = _not_cancelled([*opening, *(session.generation for session in self.running)])
        return max(0, self.max_queued + max(0, self.max_running - running) - _not_cancelled(self.waiting))

    # -- begin -----------------------------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Open slots for what waits, first come first served."""
        while True:
            with self.wake:
                if not self.waiting or len(self.running) >= self.max_running:
                    return
                generation = self.waiting[0]
                if self.running and not self.slots.fit(generation):
                    return  # a smaller one behind does not overtake
                self.opening = self.waiting.popleft()
            if generation.suspended is None:
                generation.admitted_at = time.monotonic()
            failure = failure_of(partial(self._open, generation))
            if failure is not None:
                self.end_failed(generation, failure)

    def _open(self, generation: Generation) -> None:
        try:
            session = self.slots.open(generation, self.running)
        except BaseException:
            self.opening = None
            raise
        with self.wake:
            self.running.append(session)
            self.opening = None

    # -- give way --------------------------------------------------------------------------------------------------------

    def preempt(self, session: Session) -> None:
        """Back to the front of the queue: all that wait came after it, since those that came before it run."""
        with self.wake:
            self.running.remove(session)
            self.waiting.appendleft(self.slots.suspend(session))
        self.preemptions += 1

    def grow(self, session: Session) -> None:
        """KV rows for the next steps of a session. The youngest gives way until there are enough, so the oldest gets on."""
        while not self.slots.grow(session):
            fresh = self.slots.reopen(session, self.running)
            if fresh is not None:
                with self.wake:
                    self.running[self.running.index(session)] = fresh
                self.preemptions += 1
                return
            youngest = self.running[-1]
            self.preempt(youngest)
            if youngest is session:
                return

    # -- end -------------------------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """End what was cancelled, queued or running."""
        with self.wake:
            gone = [generation for generation in self.waiting if generation.cancelled]
            for generation in gone:
                self.waiting.remove(generation)
            self.slots.prefixes.retain(generation.request for generation in self.waiting)
        for generation in gone:
            self._end(generation, "cancelled")
        for session in [session for session in self.running if session.generation.cancelled]:
            self._end(session.generation, "cancelled", session)

    def end_if_complete(self, session: Session) -> None:
        if session.generation.ended:
            return
        if session.failure is not None:
            self.end_failed(session.generation, session.failure)
        elif session.answer.finish_reason is not None:
            self._end(session.generation, session.answer.finish_reason, session)

    def _end(self, generation: Generation, reason: FinishReason, session: Session | None = None) -> None:
        """session: where it runs."""
        try:
            last = generation.finish(reason)
        except Exception as error:
            self.end_failed(generation, error)
            return
        if session is not None:
            self.slots.keep_conversation(session)
            with self.wake:
                self.slots.keep_prompt(session, self.running, self.waiting)
        self._leave(generation, reason)
        generation.end(last)

    def end_failed(self, generation: Generation, error: Exception) -> None:
        unexpected = is_unexpected(error)
        if unexpected:
            logger.error("a generation failed", exc_info=error)
            release_frames(error)
        self._leave(generation, self._why(error))
        generation.fail(error)
        if unexpected:
            self.count_failure(error)

    def end_all(self) -> None:
        """Fail what is left: the engine is closed, or the worker gave up."""
        with self.wake:
            running = [session.generation for session in self.running]
            if self.opening is not None:
                running.append(self.opening)
            waiting = [*self.waiting]
            for session in self.running:
                self.slots.release(session)
            self.running.clear()
            self.waiting.clear()
        for generation in running:
            self.end_failed(generation, GenerationLost() if self.failed else EngineClosed())
        for generation in waiting:
            self.end_failed(generation, EngineFailed() if self.failed else EngineClosed())

    def count_failure(self, error: Exception) -> None:
        """Also gives the device's memory back that the failed work held, so that there is room for what comes next."""
        self.failures.add(error)
        failure_of(lambda: empty_cache(self.slots.device))

    def _why(self, error: Exception) -> EndReason:
        if isinstance(error, GrammarError):
            return "invalid"
        return "cancelled" if self.stopping and isinstance(error, EngineClosed) else "error"

    def _leave(self, generation: Generation, reason: EndReason) -> None:
        """Give back what it holds, and report its end."""
        with self.wake:
            session = next((session for session in self.running if session.generation is generation), None)
            if session is not None:
                self.running.remove(session)
                self.slots.release(session)
                self.turns.ended(time.monotonic() - generation.admitted_at)
                self.heap.session_ended()
            self.wake.notify_all()
        if not generation.ended:
            seconds = time.monotonic() - generation.submitted_at
            prompt, answer = len(generation.request.prompt_ids), len(generation.answer.tokens)
            self.reporter.finished(reason, seconds, prompt, answer)


def _not_cancelled(generations: Iterable[Generation]) -> int:
    return sum(not generation.cancelled for generation in generations)
