"""The watchdog: gives up on an engine that has failed for good, so that the process ends, and tells systemd how it fares."""

from __future__ import annotations

import asyncio
import logging

from anyio import to_thread

from app.api.service import Service, State
from app.systemd import Notifier

logger = logging.getLogger(__name__)

EVERY = 1.0  # seconds between two looks
SIGNS: dict[State, tuple[str, ...]] = {"ready": ("READY=1",), "stopping": ("STOPPING=1",)}


class Watchdog:
    """Looks after one service from the event loop: whoever waits for its signs also hears of a loop that no longer runs."""

    def __init__(self, service: Service, notifier: Notifier) -> None:
        self._service = service
        self._notifier = notifier
        self._state: State | None = None
        period = notifier.watchdog_seconds
        self.every = EVERY if period is None else min(EVERY, period / 3)

    async def run(self) -> None:
        while True:
            try:
                await to_thread.run_sync(self.look)
            except Exception:
                logger.exception("the state of the service could not be looked at")
            await asyncio.sleep(self.every)

    def look(self) -> None:
        """Give up where nothing better will come, and tell systemd what has changed and that the service lives."""
        self._service.give_up_if_failed()
        state = self._service.state
        lines = [] if state == "failed" else ["WATCHDOG=1"]
        if state != self._state:
            self._state = state
            lines += [*SIGNS.get(state, ()), f"STATUS={state}"]
        if lines:
            self._notifier.tell(*lines)
