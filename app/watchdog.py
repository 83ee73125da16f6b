"""The watchdog: gives up on an engine that has failed for good, so that the process ends, and reports the state to systemd."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

from anyio import to_thread

from app.api.service import Service, State

logger = logging.getLogger(__name__)

EVERY = 1.0  # seconds between two checks
NOTIFICATIONS: dict[State, tuple[str, ...]] = {"ready": ("READY=1",), "stopping": ("STOPPING=1",)}


class Notifier:
    """Sends notifications to the socket that systemd names in the environment; does nothing without one."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name  # @: the abstract namespace
        self._failed = False
        period = environment.get("WATCHDOG_USEC", "")
        meant = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        self.watchdog_seconds = int(period) / 1e6 if self._address and meant and period.isdigit() else None

    def tell(self, *lines: str) -> None:
        """Send assignments such as READY=1. A socket that cannot be written to is logged once."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._failed:
                self._failed = True
                logger.warning("the state cannot be reported to systemd: %s", error)


class Watchdog:
    """Checks one service from the event loop, so that systemd also notices a loop that no longer runs."""

    def __init__(self, service: Service, notifier: Notifier) -> None:
        self._service = service
        self._notifier = notifier
        self._state: State | None = None
        period = notifier.watchdog_seconds
        self.every = EVERY if period is None else min(EVERY, period / 3)

    async def run(self) -> None:
        while True:
            try:
                await to_thread.run_sync(self.check)
            except Exception:
                logger.exception("the state of the service could not be checked")
            await asyncio.sleep(self.every)

    def check(self) -> None:
        """Give up an engine that will not recover, and tell systemd what changed and that the service is alive."""
        self._service.give_up_if_failed()
        state = self._service.state
        lines = [] if state == "failed" else ["WATCHDOG=1"]
        if state != self._state:
            self._state = state
            lines += [*NOTIFICATIONS.get(state, ()), f"STATUS={state}"]
        if lines:
            self._notifier.tell(*lines)
