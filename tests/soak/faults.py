"""What happens to the store while traffic goes on: it hangs, dies, comes back empty, is full, is emptied."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from tests.servers import RedisServer

FULL = "1mb"  # below what an empty server takes


class StoreFaults:
    """One fault after the other until cancelled; `heal` brings the store back. period: seconds that each lasts."""

    def __init__(self, server: RedisServer, period: float) -> None:
        self._server = server
        self._period = period
        self.done: Counter[str] = Counter()

    async def run(self) -> None:
        while True:
            for begin, end in (
                (self._server.pause, self._server.resume),
                (self._server.kill9, self._server.start),
                (self._fill, self._empty_again),
                (self._flush, lambda: None),
            ):
                await self._one(begin, end)

    async def _one(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        await asyncio.to_thread(begin)
        try:
            await asyncio.sleep(self._period)
        finally:
            await asyncio.shield(asyncio.to_thread(end))
            self.done[begin.__name__.strip("_")] += 1
        await asyncio.sleep(self._period / 2)

    def _fill(self) -> None:
        self._server.command("CONFIG", "SET", "maxmemory", FULL)

    def _empty_again(self) -> None:
        self._server.command("CONFIG", "SET", "maxmemory", "0")

    def _flush(self) -> None:
        self._server.command("FLUSHALL")
