"""The worker: the one thread that touches the model. It admits, prefills, decodes and ends sessions, round after round."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from app.engine.decoder import Decoder
from app.engine.errors import EngineClosed, EngineFailed, GenerationLost, QueueFull
from app.engine.events import EndReason, EngineObserver, FinishReason
from app.engine.prefix.conversations import Conversations
from app.engine.prefix.room import Room
from app.engine.scheduler.health import Failures, Pulse, failure_of, is_unexpected, release_frames
from app.engine.scheduler.heap import HeapTrim
from app.engine.scheduler.rounds import Rounds
from app.engine.scheduler.wait import Pace
from app.engine.session import Session, Stage
from app.text.errors import GrammarError
from racer.drafter import Drafter, DrafterState

logger = logging.getLogger(__name__)

JOIN_SECONDS = 10.0  # for the step that is under way; what is stuck is left behind
IDLE_WAIT = 0.5  # seconds between two heartbeats of an idle worker


def _not_cancelled(sessions: Iterable[Session]) -> int:
    return sum(not session.cancelled for session in sessions)


class Worker(Rounds):
    """Continuous batching: sessions join and leave between steps, first come first served."""

    def __init__(
        self,
        decoder: Decoder,
        new_drafter: Callable[[Session], Drafter],
        *,
        max_running: int,
        max_queued: int,
        kv_tokens: int,
        max_failures: int = 5,
        observer: EngineObserver | None = None,
        idle: Callable[[], bool] | None = None,
        conversations: Conversations | None = None,
    ) -> None:
        """kv_tokens: rows of KV that running sessions, kept conversations and prompts kept for siblings may occupy together.

        max_failures: in a row, that no request is to blame for, until the engine counts as broken and the thread ends.
        idle: a short piece of work to do when no session runs; it returns whether more is left.
        """
        room = Room(decoder.prompts, Conversations(0, 0, 0.0) if conversations is None else conversations, kv_tokens)
        super().__init__(decoder, room, Failures(max_failures, decoder.probe), observer, idle)
        self.new_drafter = new_drafter
        self.max_running = max_running
        self.max_queued = max_queued
        self.heap = HeapTrim()
        self.pulse = Pulse()
        for model in decoder.models:
            model.pulse = self.pulse
        self.failed = False  # the thread ended by itself
        self._waiting: deque[Session] = deque()
        self._wake = threading.Condition()
        self._draining = False
        self._stopping = False
        self._pace = Pace()
        self._thread = threading.Thread(target=self._run, name="racer-worker", daemon=True)

    # -- called from any thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def prepares(self) -> bool:
        """Whether idle work that is left will be done."""
        return self.alive and self.idle is not None

    @property
    def accepting(self) -> bool:
        return not self._draining and self.alive

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def drafter_states(self) -> list[DrafterState]:
        """Of running sessions, of those that wait to go on, and of kept conversations."""
        sessions = (*tuple(self._running), *self._waiting.copy())
        drafters = [*(session.drafter for session in sessions), *self.room.conversations.drafters]
        return [drafter.state for drafter in drafters if drafter is not None]

    @property
    def kv_usage(self) -> float:
        """Share of the rows that running sessions hold; all that is kept beside them gives way."""
        return self.room.reserved / self.room.kv_tokens

    @property
    def free_places(self) -> int:
        """Sessions that `submit` would take now."""
        with self._wake:
            return self._free() if self.accepting else 0

    @property
    def retry_after(self) -> int:
        """Seconds until those that wait now will have had their turn, estimated."""
        return self._pace.wait(len(self._waiting) + 1, self.max_running)

    def _free(self) -> int:
        # a cancelled session leaves within a step, so its place is free; what can start at once does not count as queued
        running, waiting = _not_cancelled(self._running), _not_cancelled(self._waiting)
        return max(0, self.max_queued + max(0, self.max_running - running) - waiting)

    def submit(self, session: Session) -> None:
        """Queue a session; raises QueueFull or EngineClosed."""
        with self._wake:
            if not self.accepting:
                raise EngineFailed if self.failed else EngineClosed
            if not self._free():
                raise QueueFull(self.retry_after)
            self._waiting.append(session)
            self._wake.notify()

    def cancel(self, session: Session) -> None:
        session.cancelled = True
        with self._wake:
            self._wake.notify()

    def drain(self) -> None:
        with self._wake:
            self._draining = True
            self._wake.notify()

    def close(self, grace: float) -> None:
        """Refuse new work, give what runs `grace` seconds, fail the rest, join the thread."""
        self.drain()
        deadline = time.monotonic() + grace
        with self._wake:
            while (self._waiting or self._running) and self.alive and time.monotonic() < deadline:
                self._wake.wait(min(0.1, max(0.0, deadline - time.monotonic())))
            self._stopping = True
            self._wake.notify()
        if self.alive and threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)
            self._fail_all()  # nothing is left, unless the thread is stuck: then those who wait hear of it from here

    # -- the worker thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._round()
                if self.failures.broken():
                    self.failed = True
                    break
        except Exception:
            self.failed = True
            logger.critical("the worker stopped", exc_info=True)
        finally:
            self._fail_all()
            with self._wake:
                self.room.clear()

    def _round(self) -> None:
        self.pulse.beat()
        self._reap()
        self.room.conversations.expire()
        self.heap.trim_if_due()
        self._admit()
        if self._running:
            self._prefill_round()
            self._decode_round()
        elif self._waiting or not self._work_idly():
            with self._wake:
                if not self._waiting and not self._stopping:
                    self._wake.wait(IDLE_WAIT)

    def _fail_all(self) -> None:
        with self._wake:
            self._draining = True
            running, waiting = [*self._running], [*self._waiting]
            for session in running:
                self.room.release(session)
            self._running.clear()
            self._waiting.clear()
        for session in running:
            self._end_failed(session, GenerationLost() if self.failed else EngineClosed())
        for session in waiting:
            self._end_failed(session, EngineFailed() if self.failed else EngineClosed())

    def _reap(self) -> None:
        """End what was cancelled, queued or running."""
        with self._wake:
            gone = [session for session in self._waiting if session.cancelled]
            for session in gone:
                self._waiting.remove(session)
            self.room.prompts.retain(self._waiting)
        for session in gone:
            self._end(session, "cancelled")
        for session in [session for session in self._running if session.cancelled]:
            self._end(session, "cancelled")

    def _admit(self) -> None:
        while True:
            with self._wake:
                if not self._waiting or len(self._running) >= self.max_running:
                    return
                session = self._waiting[0]
                if self._running and not self.room.has(session):
                    return  # first come, first served: a smaller one behind does not overtake
                self._waiting.popleft()
                self._running.append(session)
                self.room.hold(session)
            session.stage = Stage.PREFILL
            if session.drafter is None:
                session.admitted_at = time.monotonic()
            failure = failure_of(partial(self._open, session))
            if failure is not None:
                self._end_failed(session, failure)

    def _open(self, session: Session) -> None:
        self.room.open(session, session.drafter or self.new_drafter(session), self._running)

    def _preempt(self, session: Session) -> None:
        """Back to the front of the queue: all that wait came after it, since those that came before it run."""
        with self._wake:
            self._running.remove(session)
            self._waiting.appendleft(session)
            self.room.release(session)
        session.give_rows_up()
        self.preemptions += 1

    def _end(self, session: Session, reason: FinishReason) -> None:
        try:
            last = session.finish(reason)
        except Exception as error:
            self._end_failed(session, error)
            return
        self.room.keep_conversation(session)
        with self._wake:
            self.room.keep_prompt(session, self._running, self._waiting)
        self._release(session, reason)
        session.end(last)

    def _end_failed(self, session: Session, error: Exception) -> None:
        unexpected = is_unexpected(error)
        if unexpected:
            logger.error("a generation failed", exc_info=error)
            release_frames(error)
        self._release(session, self._why(error))
        session.fail(error)
        if unexpected:
            self._count_failure(error)

    def _why(self, error: Exception) -> EndReason:
        if isinstance(error, GrammarError):
            return "invalid"
        return "cancelled" if self._stopping and isinstance(error, EngineClosed) else "error"

    def _release(self, session: Session, reason: EndReason) -> None:
        with self._wake:
            if session in self._running:
                self._running.remove(session)
                self.room.release(session)
                self._pace.ended(time.monotonic() - session.admitted_at)
                self.heap.session_ended()
            self._wake.notify_all()
        if session.stage is not Stage.ENDED:
            seconds = time.monotonic() - session.submitted_at
            self._observe("finished", reason, seconds, len(session.request.prompt_ids), len(session.output))
