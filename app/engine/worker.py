"""The worker: the one thread that touches the model. It admits, prefills, decodes and ends sessions, round after round."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from app.engine.conversations import Conversations
from app.engine.decoder import Decoder
from app.engine.errors import EngineClosed, EngineError, QueueFull
from app.engine.events import EndReason, EngineObserver, FinishReason
from app.engine.heap import HeapTrim
from app.engine.pace import Pace
from app.engine.room import Room
from app.engine.session import Session, Stage
from app.engine.siblings import awaits_sibling, siblings
from app.text.errors import GrammarError
from racer.drafter import Drafter, DrafterState

logger = logging.getLogger(__name__)

JOIN_SECONDS = 10.0  # for the step that is under way; what is stuck is left behind
FORWARD = 16  # rows that a forward costs before it reads any, about: so that a round of tiny prompts has an end
IDLE_WAIT = 0.5  # seconds between two heartbeats of an idle worker


def _not_cancelled(sessions: Iterable[Session]) -> int:
    return sum(not session.cancelled for session in sessions)


class Worker:
    """Continuous batching: sessions join and leave between steps, first come first served."""

    def __init__(
        self,
        decoder: Decoder,
        new_drafter: Callable[[Session], Drafter],
        *,
        max_running: int,
        max_queued: int,
        kv_tokens: int,
        observer: EngineObserver | None = None,
        idle: Callable[[], bool] | None = None,
        conversations: Conversations | None = None,
    ) -> None:
        """kv_tokens: rows of KV that running sessions, kept conversations and prompts kept for siblings may occupy together.

        idle: a short piece of work to do when no session runs; it returns whether more is left.
        """
        self.decoder = decoder
        self.new_drafter = new_drafter
        self.max_running = max_running
        self.max_queued = max_queued
        self.room = Room(decoder.prompts, Conversations(0, 0, 0.0) if conversations is None else conversations, kv_tokens)
        self.observer = observer
        self.idle = idle
        self.heap = HeapTrim()
        self.heartbeat = time.monotonic()
        self.evictions = 0  # of automaton nodes, of all sessions that ever ran
        self._waiting: deque[Session] = deque()
        self._running: list[Session] = []
        self._wake = threading.Condition()
        self._draining = False
        self._stopping = False
        self._observer_broken = False
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
        """Of running sessions and kept conversations."""
        drafters = [*(session.drafter for session in tuple(self._running)), *self.room.conversations.drafters]
        return [drafter.state for drafter in drafters if drafter is not None]

    @property
    def kv_usage(self) -> float:
        """Share of the rows that running sessions have reserved; all that is kept beside them gives way."""
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
                raise EngineClosed
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
                self.heartbeat = time.monotonic()
                self._reap()
                self.room.conversations.expire()
                self.heap.trim_if_due()
                self._admit()
                if not self._running:
                    if not self._waiting and self._work_idly():
                        continue
                    with self._wake:
                        if not self._waiting and not self._stopping:
                            self._wake.wait(IDLE_WAIT)
                    continue
                self._prefill_round()
                self._decode_round()
        except Exception:
            logger.exception("the worker stopped")
        finally:
            self._fail_all()
            with self._wake:
                self.room.clear()

    def _fail_all(self) -> None:
        with self._wake:
            self._draining = True
            left = [*self._running, *self._waiting]
            self._running, self.room.reserved = [], 0
            self._waiting.clear()
        for session in left:
            self._end_failed(session, EngineClosed())

    def _work_idly(self) -> bool:
        """One piece of idle work; what it raises ends idle work, and nothing else."""
        if self.idle is None:
            return False
        try:
            return self.idle()
        except Exception:
            logger.exception("idle work failed and is given up")
            self.idle = None
            return False

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
                self.room.reserved += session.reserved
            session.stage, session.admitted_at = Stage.PREFILL, time.monotonic()
            try:
                self.room.open(session, self.new_drafter(session), self._running)
            except Exception as error:
                self._end_failed(session, error)

    def _prefill_round(self) -> None:
        """One chunk of the oldest prompt that is not read yet, and those after it that a chunk has room for as well."""
        left = self.decoder.prompts.chunk
        while True:
            reading = (session for session in self._running if session.stage is Stage.PREFILL)
            session = next((session for session in reading if not awaits_sibling(session, self._running)), None)
            if session is None or session.cancelled:
                return
            unread = self._unread(session)
            if left < self.decoder.prompts.chunk and unread > left:
                return  # first come, first served: a shorter one behind does not overtake
            left -= max(unread, FORWARD)
            self._read(session)
            if left <= 0:
                return

    def _unread(self, session: Session) -> int:
        """Tokens of the prompt for the model that has more of them to read at once."""
        length = len(session.request.prompt_ids)
        unread = length - session.prefilled
        if session.draft is not None:
            unread = max(unread, min(length - session.draft.agreed, self.decoder.prompts.chunk))
        return unread

    def _read(self, session: Session) -> None:
        """The next chunk of a prompt; siblings that wait for it take it over when it is whole."""
        before = session.prefilled
        try:
            self.decoder.prompts.advance(session)
        except Exception as error:
            self._end_failed(session, error)
            return
        self._count_evictions([session])
        self._observe("prefilled", session.prefilled - before)
        if session.stage is Stage.DECODE:
            self._observe("first_token", time.monotonic() - session.submitted_at)
            for sibling in siblings(session, self._running):
                if sibling.stage is not Stage.PREFILL or sibling.prefilled > 0:
                    continue
                try:
                    self.room.copy_prompt(sibling, self._running)
                except Exception as error:
                    self._end_failed(sibling, error)
            self._end_if_complete(session)

    def _decode_round(self) -> None:
        sessions = [session for session in self._running if session.stage is Stage.DECODE and not session.cancelled]
        if not sessions:
            return
        try:
            self._decode(sessions)
        except Exception as error:
            if len(sessions) == 1:
                self._end_failed(sessions[0], error)
                return
            logger.warning("a step of %d sessions failed (%s); running them one by one", len(sessions), type(error).__name__)
            for session in sessions:
                if session.stage is not Stage.DECODE or session.finish_reason is not None:
                    continue
                try:
                    self._decode([session])
                except Exception as own:
                    self._end_failed(session, own)
        for session in sessions:
            self._end_if_complete(session)

    def _decode(self, sessions: list[Session]) -> None:
        before = [len(session.output) for session in sessions]
        record = self.decoder.step(sessions)
        self._count_evictions(sessions)
        self._observe("step", record)
        for session, count in zip(sessions, before, strict=True):
            emitted = len(session.output) - count
            self._observe("inter_token", session.gap, emitted)

    def _count_evictions(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            if session.drafter is not None:
                evictions = session.drafter.state.evictions
                self.evictions += evictions - session.evictions
                session.evictions = evictions

    def _end_if_complete(self, session: Session) -> None:
        if session.finish_reason is not None and session.stage is not Stage.ENDED:
            self._end(session, session.finish_reason)

    def _end(self, session: Session, reason: FinishReason) -> None:
        self.room.keep_conversation(session)
        with self._wake:
            self.room.keep_prompt(session, self._running, self._waiting)
        self._release(session, reason)
        session.end(session.finish(reason))

    def _end_failed(self, session: Session, error: Exception) -> None:
        if not isinstance(error, EngineError | GrammarError):
            logger.error("a generation failed", exc_info=error)
        self._release(session, self._why(error))
        session.fail(error)

    def _why(self, error: Exception) -> EndReason:
        if isinstance(error, GrammarError):
            return "invalid"
        return "cancelled" if self._stopping and isinstance(error, EngineClosed) else "error"

    def _release(self, session: Session, reason: EndReason) -> None:
        with self._wake:
            if session in self._running:
                self._running.remove(session)
                self.room.reserved -= session.reserved
                self._pace.ended(time.monotonic() - session.admitted_at)
                self.heap.session_ended()
            self._wake.notify_all()
        if session.stage is not Stage.ENDED:
            seconds = time.monotonic() - session.submitted_at
            self._observe("finished", reason, seconds, len(session.request.prompt_ids), len(session.output))

    def _observe(self, what: str, *arguments: object) -> None:
        """Tell the observer; what it raises is logged once and goes no further."""
        if self.observer is None:
            return
        try:
            getattr(self.observer, what)(*arguments)
        except Exception:
            if not self._observer_broken:
                self._observer_broken = True
                logger.exception("the observer failed; later failures are not logged")
