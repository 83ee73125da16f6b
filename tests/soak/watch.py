"""Looks at the server from outside, in its own thread: health, memory, and that counters only rise."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from tests.api.support import samples
from tests.soak.server import ServerProcess

HEALTH_EVERY = 0.1  # seconds
SCRAPE_EVERY = 10  # looks at /health


@dataclass(frozen=True, slots=True)
class Look:
    """at: seconds since the watch began. files, threads: that the server holds."""

    at: float
    rss: int
    files: int
    threads: int


@dataclass(slots=True)
class Watch:
    """Use it in a `with`."""

    server: ServerProcess
    looks: list[Look] = field(default_factory=list)
    health: list[float] = field(default_factory=list)  # seconds that /health took
    fallen: list[str] = field(default_factory=list)  # counters that were seen to fall
    failures: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._run, name="soak-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(30.0)

    def growth(self, warm: float, share: float = 0.2) -> float:
        """How much larger resident memory is in the last `share` of the time than in the same span after `warm` of it."""
        end = self.looks[-1].at
        early = [look.rss for look in self.looks if warm * end <= look.at <= (warm + share) * end]
        late = [look.rss for look in self.looks if look.at >= (1 - share) * end]
        return float(np.median(late) / np.median(early)) - 1.0

    def health_percentile(self, share: float) -> float:
        return float(np.percentile(self.health, share))

    def _run(self) -> None:
        began = time.monotonic()
        before: dict[str, float] = {}
        with httpx.Client(base_url=self.server.url, timeout=60.0) as http:
            for turn in range(10**9):
                self._ask_health(http)
                if turn % SCRAPE_EVERY == 0:
                    self.looks.append(Look(time.monotonic() - began, **self.server.resources()))
                    page = samples(http)
                    self.fallen += fallen(before, page)
                    before = page
                if self._over.wait(HEALTH_EVERY):
                    return

    def _ask_health(self, http: httpx.Client) -> None:
        asked = time.monotonic()
        reply = http.get("/health")
        self.health.append(time.monotonic() - asked)
        if reply.status_code != 200:
            self.failures.append(f"/health said {reply.status_code}: {reply.text[:200]}")


def fallen(before: dict[str, float], now: dict[str, float]) -> Sequence[str]:
    """Counters of the page that are lower than before."""
    names = [name for name in before if "_total" in name or "_count" in name or "_bucket" in name]
    return [f"{name} fell from {before[name]} to {now.get(name)}" for name in names if now.get(name, -1.0) < before[name]]
