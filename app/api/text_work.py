"""Work on texts off the event loop: separate lanes of threads, so that long work does not delay short work."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from anyio import CapacityLimiter, to_thread

from app.api.errors import ApiError, queue_full
from app.metrics.collectors import LaneStatus

Result = TypeVar("Result")
# short: what a text of SHORT bytes needs, without a grammar. generate: longer work for generations. convert: longer work of
# /tokenize and /detokenize. reply: large replies.
LaneName = Literal["short", "generate", "convert", "reply"]
THREADS: dict[LaneName, int] = {"short": 2, "generate": 1, "convert": 1, "reply": 1}
SHORT = 16 * 1024  # bytes of a body
LEAST = 4 * 1024  # bytes: a smaller job counts as this many
MAX_RETRY_AFTER = 60
PACE = 0.1  # weight of the latest job in the moving average of seconds per byte


@dataclass(slots=True, eq=False)
class _Job:
    """A request that waits for its turn."""

    tenant: str
    size: int
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class _Lane:
    """The jobs of one lane: those of different tenants take turns, and generations come before the rest."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.limiter = CapacityLimiter(threads)
        self.running = 0
        self.bytes = 0  # of jobs that wait
        self.held: Counter[str] = Counter()  # the same by tenant
        self.seconds_per_byte = 0.0
        self._queues: tuple[OrderedDict[str, deque[_Job]], ...] = (OrderedDict(), OrderedDict())

    @property
    def waiting(self) -> int:
        return sum(len(jobs) for queue in self._queues for jobs in queue.values())

    def add(self, job: _Job, *, first: bool) -> None:
        self._queues[0 if first else 1].setdefault(job.tenant, deque()).append(job)
        self._count(job, 1)

    def drop(self, job: _Job) -> None:
        """Remove a job whose client left; does nothing once the job has started."""
        for queue in self._queues:
            if job in queue.get(job.tenant, ()):
                queue[job.tenant].remove(job)
                if not queue[job.tenant]:
                    del queue[job.tenant]
                self._count(job, -1)

    def free(self) -> None:
        """Give a thread that became free to the next job."""
        for queue in self._queues:
            while queue:
                tenant, jobs = queue.popitem(last=False)
                job = jobs.popleft()
                if jobs:
                    queue[tenant] = jobs  # behind the other tenants
                self._count(job, -1)
                if not job.turn.done():  # its client is still there
                    job.turn.set_result(None)
                    return
        self.running -= 1

    def _count(self, job: _Job, sign: int) -> None:
        self.bytes += sign * job.size
        self.held[job.tenant] += sign * job.size
        if not self.held[job.tenant]:
            del self.held[job.tenant]

    def ran(self, size: int, seconds: float) -> None:
        self.seconds_per_byte += PACE * (seconds / size - self.seconds_per_byte)

    @property
    def retry_after(self) -> int:
        return min(MAX_RETRY_AFTER, max(1, math.ceil(self.bytes * self.seconds_per_byte / self.threads)))


class TextWork:
    """Runs jobs in lanes. For the event loop."""

    def __init__(self, most_bytes: int, on_refused: Callable[[], None]) -> None:
        """most_bytes: of bodies that may wait in a lane; one key has at most half of them."""
        self._most_bytes = most_bytes
        self._on_refused = on_refused
        self._lanes = {name: _Lane(threads) for name, threads in THREADS.items()}
        self._running: set[asyncio.Task[object]] = set()

    def status(self) -> dict[str, LaneStatus]:
        return {name: LaneStatus(lane.running, lane.waiting, lane.bytes) for name, lane in self._lanes.items()}

    async def run(
        self,
        name: LaneName,
        work: Callable[[], Result],
        *,
        tenant: str,
        size: int,
        admitted: bool = False,
    ) -> Result:
        """What work returns or raises, from a thread.

        size: bytes of the body, a measure of the work. admitted: the request has waited here before, or has a place in the
        engine's queue; others get ApiError 429 if too much waits. Work that has begun is not stopped when its client leaves.
        """
        lane, size = self._lanes[name], max(size, LEAST)
        if lane.running < lane.threads:
            lane.running += 1
        else:
            if not admitted:
                self._check(lane, tenant, size)
            job = _Job(tenant, size)
            lane.add(job, first=admitted)
            try:
                await job.turn
            except asyncio.CancelledError:
                if job.turn.done() and not job.turn.cancelled():  # it had the thread already
                    lane.free()
                lane.drop(job)
                raise
        task = asyncio.ensure_future(self._occupy(lane, work, size))
        self._running.add(task)
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    async def _occupy(self, lane: _Lane, work: Callable[[], Result], size: int) -> Result:
        started = time.monotonic()
        try:
            return await to_thread.run_sync(work, limiter=lane.limiter)
        finally:
            lane.ran(size, time.monotonic() - started)
            lane.free()

    def _over(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: if the client left, no one awaits this task

    def _check(self, lane: _Lane, tenant: str, size: int) -> None:
        """Raises ApiError 429 above the lane's limit or the tenant's share of it. An only job may be of any size."""
        held, share = lane.held[tenant], self._most_bytes // 2 if tenant else self._most_bytes
        full = lane.bytes > 0 and lane.bytes + size > self._most_bytes
        if not full and (held == 0 or held + size <= share):
            return
        self._on_refused()
        raise _too_much_waits(lane.retry_after)


def _too_much_waits(retry_after: int) -> ApiError:
    message = "The server is busy: too much text waits to be parsed or tokenised. Try again later."
    return queue_full(retry_after, message)
