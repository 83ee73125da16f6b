"""One round of the worker: the prompts that are read between two steps, and the step of those that decode."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial

from app.engine.decoder import Decoder
from app.engine.events import EngineObserver, FinishReason
from app.engine.models.device import empty_cache
from app.engine.prefix.room import Room
from app.engine.prefix.siblings import awaits_sibling, siblings
from app.engine.scheduler.health import Failures, failure_of
from app.engine.session import Session, Stage

logger = logging.getLogger(__name__)

FORWARD = 16  # rows that a forward costs before it reads any, about: so that a round of tiny prompts has an end


class Rounds(ABC):
    """What the worker thread does with its running sessions. They begin and end elsewhere."""

    def __init__(
        self,
        decoder: Decoder,
        room: Room,
        failures: Failures,
        observer: EngineObserver | None,
        idle: Callable[[], bool] | None,
    ) -> None:
        self.decoder = decoder
        self.room = room
        self.failures = failures
        self.observer = observer
        self.idle = idle
        self.evictions = 0  # of automaton nodes, of all sessions that ever ran
        self.preemptions = 0  # times that a session gave its rows of KV up and had its text read again
        self._running: list[Session] = []  # oldest first
        self._observer_broken = False

    @abstractmethod
    def _end(self, session: Session, reason: FinishReason) -> None: ...

    @abstractmethod
    def _end_failed(self, session: Session, error: Exception) -> None: ...

    @abstractmethod
    def _preempt(self, session: Session) -> None:
        """Take its rows of KV from a session and let it wait for its next turn."""

    def _prefill_round(self) -> None:
        """One chunk of the oldest prompt that is not read yet, and those after it that a chunk has room for as well."""
        left = self.decoder.prompts.chunk
        while True:
            reading = (session for session in self._running if session.stage is Stage.PREFILL)
            session = next((session for session in reading if not awaits_sibling(session, self._running)), None)
            if session is None or session.cancelled or self.failures.too_many:
                return
            unread = self._unread(session)
            if left < self.decoder.prompts.chunk and unread > left:
                return  # first come, first served: a shorter one behind does not overtake
            left -= max(unread, FORWARD)
            self._read(session)
            if left <= 0:
                return

    def _unread(self, session: Session) -> int:
        """Tokens for the model that has more of them to read at once."""
        unread = session.readable - session.prefilled
        if session.draft is not None:
            behind = len(session.request.prompt_ids) - session.draft.agreed
            unread = max(unread, min(behind, self.decoder.prompts.chunk))
        return unread

    def _read(self, session: Session) -> None:
        """The next chunk of a prompt; siblings that wait for it take it over when it is whole."""
        before, begun = session.prefilled, bool(session.output)
        failure = failure_of(lambda: self.decoder.prompts.advance(session))
        if failure is not None:
            self._end_failed(session, failure)
            return
        self.failures.clear()
        self._count_evictions([session])
        self._observe("prefilled", session.count_read(before))
        if session.stage is Stage.DECODE:
            if not begun:
                self._observe("first_token", time.monotonic() - session.submitted_at)
            for sibling in siblings(session, self._running):
                if sibling.stage is not Stage.PREFILL or sibling.prefilled > 0:
                    continue
                failure = failure_of(partial(self.room.copy_prompt, sibling, self._running))
                if failure is not None:
                    self._end_failed(sibling, failure)
            self._end_if_complete(session)

    def _work_idly(self) -> bool:
        """One piece of idle work; what it raises ends idle work, and nothing else. True if more is left."""
        if self.idle is None:
            return False
        more = False

        def work(idle: Callable[[], bool] = self.idle) -> None:
            nonlocal more
            more = idle()

        failure = failure_of(work)
        if failure is not None:
            logger.error("idle work failed and is given up", exc_info=failure)
            self._count_failure(failure)
            self.idle = None
        return more

    def _decoding(self) -> list[Session]:
        return [session for session in self._running if session.stage is Stage.DECODE and not session.cancelled]

    def _grow_round(self) -> None:
        """See that each session has the rows of KV that its next step may need, the oldest first."""
        for session in self._decoding():
            if session.stage is Stage.DECODE and session.rows < session.least_rows:
                failure = failure_of(partial(self._grow, session))
                if failure is not None:
                    self._end_failed(session, failure)

    def _grow(self, session: Session) -> None:
        """The youngest makes room until there is enough: so the oldest always gets on."""
        while not self.room.grow(session):
            if self.room.begin_again(session, self._running):
                self.preemptions += 1
                return
            youngest = self._running[-1]
            self._preempt(youngest)
            if youngest is session:
                return

    def _decode_round(self) -> None:
        self._grow_round()
        sessions = self._decoding()
        if not sessions:
            return
        failure = failure_of(lambda: self._decode(sessions))
        if failure is not None and len(sessions) == 1:
            self._end_failed(sessions[0], failure)
        elif failure is not None:
            logger.warning("a step of %d sessions failed (%s); running them one by one", len(sessions), type(failure).__name__)
            self._count_failure(failure)
            for session in sessions:
                self._decode_alone(session)
        for session in sessions:
            self._end_if_complete(session)

    def _decode_alone(self, session: Session) -> None:
        if session.stage is not Stage.DECODE or session.finish_reason is not None or self.failures.too_many:
            return
        failure = failure_of(lambda: self._decode([session]))
        if failure is not None:
            self._end_failed(session, failure)

    def _decode(self, sessions: list[Session]) -> None:
        before = [len(session.output) for session in sessions]
        record = self.decoder.step(sessions)
        self._count_evictions(sessions)
        if not record.sessions:
            return
        self.failures.clear()
        self._observe("step", record)
        for session, count in zip(sessions, before, strict=True):
            emitted = len(session.output) - count
            if emitted:
                self._observe("inter_token", session.gap, emitted)

    def _count_failure(self, error: Exception) -> None:
        """Also gives the device's memory back that the failed work held, so that there is room for what comes next."""
        self.failures.add(error)
        failure_of(lambda: empty_cache(self.decoder.target.device))

    def _count_evictions(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            if session.drafter is not None:
                evictions = session.drafter.state.evictions
                self.evictions += evictions - session.evictions
                session.evictions = evictions

    def _end_if_complete(self, session: Session) -> None:
        if session.stage is Stage.ENDED:
            return
        if session.failure is not None:
            self._end_failed(session, session.failure)
        elif session.finish_reason is not None:
            self._end(session, session.finish_reason)

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
