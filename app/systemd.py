"""systemd's notification socket: a service of type notify says there that it is ready, that it lives, and that it stops."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

logger = logging.getLogger(__name__)


class Notifier:
    """Sends to the socket that systemd names in the environment; without one it does nothing."""

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
                logger.warning("systemd cannot be told how the service fares: %s", error)
