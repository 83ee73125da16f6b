"""Admission control: places in the engine's queue and per API key, checked before any work is done."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from app.api.errors import ApiError, queue_full
from app.engine.interface import EngineStatus

MAX_SCORES = 4_000_000  # log-probabilities of echoed tokens in all replies together


class Admission:
    """Counts places held, and those reserved in the queue. Event loop only, except for `Lease.queued` and `Lease.score`."""

    def __init__(self, per_key: int | None, on_key_busy: Callable[[], None]) -> None:
        """per_key: concurrent generations per tenant; None: no limit."""
        self.per_key = per_key
        self.on_key_busy = on_key_busy
        self._held: Counter[str] = Counter()
        self._arriving = 0
        self._scores = 0
        self._lock = threading.Lock()

    def arrive(self, change: int) -> None:
        with self._lock:
            self._arriving += change

    def held(self, tenant: str) -> int:
        return self._held[tenant]

    def enter(self, tenant: str, status: EngineStatus | None) -> Lease:
        """One place of the tenant's for a request whose body is not read yet. Raises ApiError 429.

        It reserves no place in the queue, since a client that sends its body slowly would block it. status: of a ready
        engine, or None.
        """
        if status is not None and status.free_places <= self._arriving:
            raise queue_full(status.retry_after)
        lease = Lease(self, tenant)
        lease.hold(1, status)
        return lease


class Lease:
    """What one request holds, from before its body is read until its reply is over."""

    def __init__(self, admission: Admission, tenant: str) -> None:
        self._admission, self._tenant = admission, tenant
        self._held = self._arriving = self._scores = 0
        self._over = False

    def hold(self, count: int, status: EngineStatus | None) -> None:
        """Change the number of the key's places held to `count`. Raises ApiError 429 with nothing changed."""
        admission = self._admission
        more = count - self._held
        if admission.per_key is not None and admission.held(self._tenant) + more > admission.per_key:
            admission.on_key_busy()
            raise _key_busy(admission.per_key, status.retry_after if status is not None else 1)
        admission._held[self._tenant] += more
        self._held = count

    def reserve(self, count: int, status: EngineStatus) -> None:
        """Reserve `count` places in the queue until `queued`, and hold `count` of the key's. Raises ApiError 429."""
        admission = self._admission
        if status.free_places - admission._arriving < count:
            raise queue_full(status.retry_after)
        self.hold(count, status)
        admission.arrive(count)
        self._arriving = count

    def queued(self) -> None:
        """End the reservation in the queue. Idempotent, from any thread.

        Called just before the engine queues the generations: after it they would count twice for a moment, and another
        request could be refused although there is a free place.
        """
        self._admission.arrive(-self._arriving)
        self._arriving = 0

    def score(self, count: int, status: EngineStatus) -> None:
        """Count log-probabilities of echoed tokens until the reply is over. Call once, from any thread.

        Raises ApiError 429 if other replies hold too many.
        """
        admission = self._admission
        with admission._lock:
            if count and admission._scores and admission._scores + count > MAX_SCORES:
                message = "The server is busy: it gives back many log-probabilities of prompts. Try again later."
                raise queue_full(status.retry_after, message)
            if not self._over:
                admission._scores += count
                self._scores = count

    def release(self) -> None:
        """Give everything back. Idempotent."""
        self.queued()
        with self._admission._lock:
            self._admission._scores -= self._scores
            self._scores, self._over = 0, True
        held = self._admission._held
        held[self._tenant] -= self._held
        if not held[self._tenant]:
            del held[self._tenant]  # the table must not grow with every key ever used
        self._held = 0


def _key_busy(most: int, retry_after: int) -> ApiError:
    message = f"This API key has {most} generations at work, as many as one key may have. Try again when one has ended."
    headers = {"Retry-After": str(retry_after)}
    return ApiError(429, message, kind="rate_limit_error", code="key_concurrency", headers=headers)
