"""The soak: mixed traffic on a real server while its store fails, and what must hold before, during and after."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from bench.load.stream import DONE, payloads
from tests.api.support import CHAT, parse_page
from tests.servers import RedisServer
from tests.soak.checks import Page, at_rest, check_clients, check_page, check_quiet
from tests.soak.faults import StoreFaults
from tests.soak.ledger import Ledger
from tests.soak.server import MAX_RUNNING, ServerProcess
from tests.soak.traffic import EXACT, SPECULATIONS, Traffic, user
from tests.soak.watch import Watch

Seen = TypeVar("Seen")

CLIENTS = 8  # at once: twice what runs, so that some always wait
PATIENCE = 60.0  # seconds for the server to come to rest, and for the store to be found again
WARM = 0.3  # share of the time that memory may grow in
FAULTS = 40  # periods of store faults in a run, none shorter than SHORTEST_FAULT
SHORTEST_FAULT = 0.8  # seconds


@dataclass(frozen=True, slots=True)
class Bounds:
    """growth: of resident memory after the warm-up, as a share. health_p99, health_max: seconds /health may take."""

    growth: float
    health_p99: float
    health_max: float


LONG = Bounds(growth=0.05, health_p99=0.1, health_max=1.0)
# in its first seconds a process still takes memory for everything it does for the first time, and a test may share its cores
SHORT = Bounds(growth=0.15, health_p99=1.0, health_max=5.0)


@dataclass(slots=True)
class Report:
    """What a soak came to; it passed where problems is empty."""

    seconds: float
    ledger: Ledger
    watch: Watch
    faults: StoreFaults
    page: Page

    @property
    def problems(self) -> list[str]:
        more = self.ledger.problem_count - len(self.ledger.problems)
        return [*self.ledger.problems, *([f"and {more} more"] if more else [])]

    def __str__(self) -> str:
        ledger, watch = self.ledger, self.watch
        looks = [watch.looks[0], watch.looks[int(WARM * len(watch.looks))], watch.looks[-1]]
        megabytes = " / ".join(f"{look.rss / 2**20:.1f}" for look in looks)
        health = " / ".join(f"{1000 * watch.health_percentile(share):.1f}" for share in (50, 99, 100))
        lines = [
            f"{self.seconds:.0f} s, {sum(ledger.kinds.values())} clients: {dict(ledger.kinds.most_common())}",
            f"{ledger.answers} answers of {ledger.completion_tokens} tokens, {ledger.compared} compared with the right one",
            f"{ledger.dropped} left, {ledger.refused} refused for want of room; store: {dict(self.faults.done)}",
            f"resident MB at the start, after the warm-up, at the end: {megabytes}; grown by {100 * watch.growth(WARM):.1f} %",
            f"open files {looks[1].files} -> {looks[2].files}, threads {looks[1].threads} -> {looks[2].threads}",
            f"/health ms p50 / p99 / max: {health}",
            *(f"PROBLEM: {problem}" for problem in self.problems),
        ]
        return "\n".join(lines)


def soak(directory: Path, redis: RedisServer, seconds: float, bounds: Bounds, seed: int = 0) -> Report:
    """Run it with a started Redis; the server process is started and ended here."""
    server = ServerProcess(directory, redis.url)
    try:
        return asyncio.run(_soak(server, redis, seconds, bounds, seed))
    finally:
        server.kill()


async def _soak(server: ServerProcess, redis: RedisServer, seconds: float, bounds: Bounds, seed: int) -> Report:
    ledger = Ledger()
    faults = StoreFaults(redis, max(SHORTEST_FAULT, seconds / FAULTS))
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=httpx.Limits(max_connections=None)) as http:
        traffic = Traffic(http, ledger, seed)
        await _right_answers(traffic)
        with Watch(server) as watch:
            await _mixed(traffic, faults, seconds)
            page = await _rest(http, ledger)
        check_page(page, ledger)
        check_clients(page, ledger)
        page = await _quiet(http, ledger, seed, page)
        await _store_is_back(http, ledger)
        _check_watch(watch, bounds, ledger)
        await _end(http, server, ledger)
    for line in server.complaints:
        ledger.problem(f"the server's log has: {line}")
    return Report(seconds, ledger, watch, faults, page)


async def _right_answers(traffic: Traffic) -> None:
    """Each answer that is to be compared, one after another on an idle server, plain first."""
    for number in range(len(EXACT)):
        for speculative in ({"drafter": "none"}, *SPECULATIONS):
            await traffic.exact_answer(number, speculative, stream=False)


async def _mixed(traffic: Traffic, faults: StoreFaults, seconds: float) -> None:
    """Clients come one after another, a fixed number at once, until the time is over."""
    deadline = time.monotonic() + seconds

    async def clients() -> None:
        while time.monotonic() < deadline:
            await traffic.one()

    failing = asyncio.create_task(faults.run())
    try:
        await asyncio.gather(*(clients() for _ in range(CLIENTS)))
    finally:
        failing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await failing


async def _rest(http: httpx.AsyncClient, ledger: Ledger) -> Page:
    """The metrics page once nothing runs any more."""
    page = await _look_until(lambda: _page(http), at_rest)
    ledger.check(at_rest(page), f"gauges are not at zero: {page}")
    return page


async def _look_until(look: Callable[[], Awaitable[Seen]], good: Callable[[Seen], bool]) -> Seen:
    """The last value seen: once it is good, or when the time to wait is over."""
    deadline = time.monotonic() + PATIENCE
    while True:
        seen = await look()
        if good(seen) or time.monotonic() > deadline:
            return seen
        await asyncio.sleep(0.1)


async def _page(http: httpx.AsyncClient) -> Page:
    return parse_page((await http.get("/metrics")).text)


async def _quiet(http: httpx.AsyncClient, ledger: Ledger, seed: int, before: Page) -> Page:
    """Once more the right answers, and some others, with nobody leaving; exact in every count."""
    own = Ledger(texts=ledger.texts)
    traffic = Traffic(http, own, seed + 1)
    await _right_answers(traffic)
    for kind in (traffic.sampled, traffic.rescuing, traffic.several_prompts, traffic.long_prompt):
        await asyncio.gather(*(kind() for _ in range(MAX_RUNNING)))
    after = await _rest(http, own)
    check_page(after, own)
    check_quiet(before, after, own)
    ledger.compared += own.compared
    ledger.problems += own.problems
    ledger.problem_count += own.problem_count
    return after


async def _store_is_back(http: httpx.AsyncClient, ledger: Ledger) -> None:
    """The server finds its store again without a restart, and goes on teaching it."""

    async def store_state() -> dict[str, Any]:
        return dict((await http.get("/ready")).json()["store"])

    store = await _look_until(store_state, lambda store: store["state"] == "ok")
    ledger.check(store["state"] == "ok", f"the store was not found again: {store}")
    page = await _page(http)
    errors = sum(value for series, value in page.items() if series.startswith("racer_store_errors_total"))
    ledger.check(errors > 0, "no fault of the store was noticed")
    ledger.check(page["racer_store_acknowledged_increments_total"] > 0, "the store acknowledged nothing")


def _check_watch(watch: Watch, bounds: Bounds, ledger: Ledger) -> None:
    for said in (*watch.failures, *watch.fallen):
        ledger.problem(said)
    grown = watch.growth(WARM)
    ledger.check(grown <= bounds.growth, f"resident memory grew by {100 * grown:.1f} % after the warm-up")
    for share, bound in ((99, bounds.health_p99), (100, bounds.health_max)):
        took = watch.health_percentile(share)
        ledger.check(took <= bound, f"/health took {took:.3f} s at the {share}th percentile")
    warm, last = watch.looks[int(WARM * len(watch.looks))], watch.looks[-1]
    ledger.check(last.threads <= warm.threads + 2, f"threads grew from {warm.threads} to {last.threads}")
    ledger.check(last.files <= warm.files + 3 * CLIENTS, f"open files grew from {warm.files} to {last.files}")


async def _end(http: httpx.AsyncClient, server: ServerProcess, ledger: Ledger) -> None:
    """SIGTERM while streams run: each ends as an answer or with an error frame, and the process with code 0."""
    body = {"messages": user("On and on"), "max_tokens": 1900, "ignore_eos": True, "stream": True}
    begun = asyncio.Barrier(MAX_RUNNING + 1)

    async def last_payload() -> str:
        last = ""
        async with http.stream("POST", CHAT, json=body) as reply:
            async for payload in payloads(reply):
                if not last:
                    await begun.wait()
                last = payload
        return last

    streams = [asyncio.create_task(last_payload()) for _ in range(MAX_RUNNING)]
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
    server.terminate()
    for end in await asyncio.gather(*streams):
        ledger.check(end == DONE or '"error"' in end, f"a stream of a server that stops ended with {end[:200]!r}")
    code = await asyncio.to_thread(server.wait)
    ledger.check(code == 0, f"the server ended with code {code}")
