"""Sends the requests: a closed loop keeps N open, an open loop sends them when they are due, however the server fares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import numpy as np

from bench.load.client import UNREACHABLE, Job, LoadClient
from bench.load.plan import LoadPlan, Way
from bench.load.sample import Sample

WARM_UP = -1  # the block before those that count
GIVE_UP_AFTER = 20  # requests in a row that found nobody: the server is gone


class Driver:
    """Runs blocks of requests; hear is told of each that ended."""

    def __init__(self, plan: LoadPlan, client: LoadClient, hear: Callable[[Sample], None]) -> None:
        self._plan, self._client, self._hear = plan, client, hear
        self._unreachable = 0  # in a row

    @property
    def gone(self) -> bool:
        """Whether the server is there no more; nothing is sent then."""
        return self._unreachable >= GIVE_UP_AFTER

    async def block(self, way: Way, number: int, jobs: Sequence[Job]) -> None:
        """All jobs, and the wait for the last answer. number: from 0, or WARM_UP."""
        if self._plan.rate is None:
            await self._closed(way, number, jobs)
        else:
            await self._open(way, number, jobs, self._plan.rate)

    async def _closed(self, way: Way, number: int, jobs: Sequence[Job]) -> None:
        left = iter(jobs)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._plan.concurrency or 1, len(jobs))):
                group.create_task(self._one_after_another(way, number, left))

    async def _one_after_another(self, way: Way, number: int, left: Iterator[Job]) -> None:
        for job in left:
            if self.gone:
                return
            await self._ask(job, way, number, self._client.clock())

    async def _open(self, way: Way, number: int, jobs: Sequence[Job], rate: float) -> None:
        """The arrivals of a block are the same for every way."""
        gaps = np.random.default_rng((self._plan.seed, number - WARM_UP)).exponential(1.0 / rate, len(jobs))
        places = nullcontext() if self._plan.concurrency is None else asyncio.Semaphore(self._plan.concurrency)
        due = self._client.clock()
        async with asyncio.TaskGroup() as group:
            for job, gap in zip(jobs, gaps.tolist(), strict=True):
                due += gap
                await asyncio.sleep(max(0.0, due - self._client.clock()))
                if self.gone:
                    return
                group.create_task(self._when_there_is_room(places, job, way, number, due))

    async def _when_there_is_room(
        self, places: asyncio.Semaphore | nullcontext[None], job: Job, way: Way, number: int, due: float
    ) -> None:
        async with places:
            await self._ask(job, way, number, due)

    async def _ask(self, job: Job, way: Way, number: int, due: float) -> None:
        sample = await self._client.ask(job, way, number, due)
        self._unreachable = self._unreachable + 1 if sample.error == UNREACHABLE else 0
        self._hear(sample)
