"""One round of the worker: the prompts that are read between two steps, and the step of those that decode."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from app.engine.decoder import Decoder
from app.engine.prefix.siblings import awaits_sibling, siblings
from app.engine.scheduler.health import failure_of
from app.engine.scheduler.pool import Pool
from app.engine.session import Session

logger = logging.getLogger(__name__)

FORWARD = 16  # rows that a forward pass costs before it reads any, about: so that a round of tiny prompts has an end


class Rounds:
    """What the worker thread does with its running sessions."""

    def __init__(self, decoder: Decoder, pool: Pool, idle: Callable[[], bool] | None) -> None:
        """idle: a short piece of work to do when no session runs; it returns whether more is left."""
        self.decoder = decoder
        self.pool = pool
        self.idle = idle
        self.evictions = 0  # of automaton nodes, of all sessions that ever ran

    def prefill(self) -> None:
        """One chunk of the oldest prompt that is not read yet, and those after it that a chunk has room for as well."""
        chunk = left = self.decoder.prefill.chunk
        while True:
            running = self.pool.running
            session = next((one for one in running if not one.decoding and not awaits_sibling(one, running)), None)
            if session is None or session.generation.cancelled or self.pool.failures.too_many:
                return
            unread = self._unread(session)
            if left < chunk and unread > left:
                return  # first come, first served: a shorter one behind does not overtake
            left -= max(unread, FORWARD)
            self._read(session)
            if left <= 0:
                return

    def _unread(self, session: Session) -> int:
        """Tokens for the model that has more of them to read at once."""
        if session.draft_cache is None:
            return session.unread
        behind = len(session.request.prompt_ids) - session.draft_cache.agreed
        return max(session.unread, min(behind, self.decoder.prefill.chunk))

    def _read(self, session: Session) -> None:
        """The next chunk of a prompt; other choices that wait for it take it over when it is whole."""
        pool, before, begun = self.pool, session.cache.length, bool(session.answer.tokens)
        failure = failure_of(lambda: self.decoder.prefill.advance(session))
        if failure is not None:
            pool.end_failed(session.generation, failure)
            return
        pool.failures.clear()
        self._count_evictions([session])
        pool.reporter.prefilled(session.count_read(before))
        if session.decoding:
            if not begun:
                pool.reporter.first_token(time.monotonic() - session.generation.submitted_at)
            self._share(session)
            pool.end_if_complete(session)

    def _share(self, reader: Session) -> None:
        """Let the other choices of a prompt take it over."""
        for session in siblings(reader, self.pool.running):
            if not session.decoding and session.cache.length == 0:
                failure = failure_of(partial(self.pool.slots.copy_prompt, session, self.pool.running))
                if failure is not None:
                    self.pool.end_failed(session.generation, failure)

    def decode(self) -> None:
        """One verify step of all sessions that decode; where it fails for all of them, of each alone."""
        self._grow()
        sessions = self._decoding()
        if not sessions:
            return
        failure = failure_of(lambda: self._step(sessions))
        if failure is not None and len(sessions) == 1:
            self.pool.end_failed(sessions[0].generation, failure)
        elif failure is not None:
            logger.warning("a step of %d sessions failed (%s); running them one by one", len(sessions), type(failure).__name__)
            self.pool.count_failure(failure)
            for session in sessions:
                self._step_alone(session)
        for session in sessions:
            self.pool.end_if_complete(session)

    def _decoding(self) -> list[Session]:
        return [session for session in self.pool.running if session.decoding and not session.generation.cancelled]

    def _grow(self) -> None:
        """See that each session has the KV rows that its next step may need, the oldest first."""
        for session in self._decoding():
            if session in self.pool.running and session.rows < session.generation.least_rows:
                failure = failure_of(partial(self.pool.grow, session))
                if failure is not None:
                    self.pool.end_failed(session.generation, failure)

    def _step(self, sessions: list[Session]) -> None:
        result = self.decoder.step(sessions)
        self._count_evictions(sessions)
        if not result.steps:
            return
        self.pool.failures.clear()
        self.pool.reporter.step(self.decoder.account(result))
        for step in result.steps:
            self.pool.reporter.inter_token(step.session.answer.gap, len(step.tokens))

    def _step_alone(self, session: Session) -> None:
        if session.generation.ended or session.answer.finish_reason is not None or self.pool.failures.too_many:
            return
        failure = failure_of(lambda: self._step([session]))
        if failure is not None:
            self.pool.end_failed(session.generation, failure)

    def work_idly(self) -> bool:
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
            self.pool.count_failure(failure)
            self.idle = None
        return more

    def _count_evictions(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            evictions = session.drafter.state.evictions
            self.evictions += evictions - session.evictions
            session.evictions = evictions
