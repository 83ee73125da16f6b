"""The scheduler: a queue, and the one thread that touches the model."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from app.engine.decoder import Decoder
from app.engine.errors import EngineClosed, EngineFailed, QueueFull
from app.engine.events import EngineObserver
from app.engine.forward.pulse import Pulse
from app.engine.generation import Generation
from app.engine.prefix.cache import PrefixCache
from app.engine.scheduler.health import Failures
from app.engine.scheduler.pool import Pool
from app.engine.scheduler.reporter import SafeObserver
from app.engine.scheduler.rounds import Rounds
from app.engine.slots import Slots
from racer.drafter import Drafter, DrafterState

logger = logging.getLogger(__name__)

JOIN_SECONDS = 10.0  # for the step that is under way; what is stuck is left behind
IDLE_WAIT = 0.5  # seconds between two heartbeats of an idle worker


class Scheduler:
    """Continuous batching: sessions join and leave between steps, first come first served."""

    def __init__(
        self,
        decoder: Decoder,
        new_drafter: Callable[[Generation], Drafter],
        *,
        max_running: int,
        max_queued: int,
        kv_tokens: int,
        max_failures: int = 5,
        observer: EngineObserver | None = None,
        idle: Callable[[], bool] | None = None,
        prefixes: PrefixCache | None = None,
    ) -> None:
        """kv_tokens: KV rows that running sessions and the prefix cache may occupy together.

        max_failures: in a row, that no request is to blame for, until the engine counts as broken and the thread ends.
        idle: a short piece of work to do when no session runs; it returns whether more is left.
        """
        self.decoder = decoder
        self.slots = Slots(
            decoder.target,
            decoder.draft_model,
            new_drafter,
            PrefixCache() if prefixes is None else prefixes,
            vocab_size=decoder.vocab_size,
            kv_tokens=kv_tokens,
        )
        self.pool = Pool(
            self.slots,
            Failures(max_failures, decoder.probe),
            SafeObserver(observer),
            max_running=max_running,
            max_queued=max_queued,
        )
        self.rounds = Rounds(decoder, self.pool, idle)
        self.pulse = Pulse()
        for model in decoder.models:
            model.pulse = self.pulse
        self._draining = False
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
        return self.alive and self.rounds.idle is not None

    @property
    def accepting(self) -> bool:
        return not self._draining and self.alive

    @property
    def running(self) -> int:
        return self.pool.active

    @property
    def waiting(self) -> int:
        return len(self.pool.waiting)

    @property
    def drafter_states(self) -> list[DrafterState]:
        """Of running sessions, of those that wait to go on, and of kept conversations."""
        suspended = [generation.suspended for generation in self.pool.waiting.copy()]
        drafters = [session.drafter for session in tuple(self.pool.running)]
        drafters += [held.drafter for held in suspended if held is not None]
        return [drafter.state for drafter in (*drafters, *self.slots.prefixes.drafters)]

    @property
    def kv_usage(self) -> float:
        """Share of the KV rows that running sessions hold; all that is kept beside them gives way."""
        return self.slots.reserved / self.slots.kv_tokens

    @property
    def free_places(self) -> int:
        """Generations that `submit` would take now."""
        with self.pool.wake:
            return self.pool.free() if self.accepting else 0

    @property
    def retry_after(self) -> int:
        """Seconds until those that wait now will have had their turn, estimated."""
        return self.pool.turns.wait(len(self.pool.waiting) + 1, self.pool.max_running)

    def submit(self, generation: Generation) -> None:
        """Queue a generation; raises QueueFull or EngineClosed."""
        pool = self.pool
        with pool.wake:
            if not self.accepting:
                raise EngineFailed if pool.failed else EngineClosed
            if not pool.free():
                raise QueueFull(self.retry_after)
            pool.waiting.append(generation)
            pool.wake.notify()

    def cancel(self, generation: Generation) -> None:
        generation.cancelled = True
        with self.pool.wake:
            self.pool.wake.notify()

    def drain(self) -> None:
        with self.pool.wake:
            self._draining = True
            self.pool.wake.notify()

    def close(self, grace: float) -> None:
        """Refuse new work, give what runs `grace` seconds, fail the rest, join the thread."""
        self.drain()
        pool, deadline = self.pool, time.monotonic() + grace
        with pool.wake:
            while (pool.waiting or pool.active) and self.alive and time.monotonic() < deadline:
                pool.wake.wait(min(0.1, max(0.0, deadline - time.monotonic())))
            pool.stopping = True
            pool.wake.notify()
        if self.alive and threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)
            self._end_all()  # nothing is left, unless the thread is stuck: then those who wait hear of it from here

    # -- the worker thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pool = self.pool
        try:
            while not pool.stopping:
                self.round()
                if pool.failures.broken():
                    pool.failed = True
                    break
        except Exception:
            pool.failed = True
            logger.critical("the worker stopped", exc_info=True)
        finally:
            self._end_all()
            with pool.wake:
                self.slots.prefixes.clear()

    def round(self) -> None:
        """End what was cancelled, admit what waits, read prompts, and run a step; or work idly, or wait."""
        pool = self.pool
        self.pulse.beat()
        pool.reap()
        self.slots.prefixes.expire()
        pool.heap.trim_if_due()
        pool.admit()
        if pool.running:
            self.rounds.prefill()
            self.rounds.decode()
        elif pool.waiting or not self.rounds.work_idly():
            with pool.wake:
                if not pool.waiting and not pool.stopping:
                    pool.wake.wait(IDLE_WAIT)

    def _end_all(self) -> None:
        with self.pool.wake:
            self._draining = True
        self.pool.end_all()
