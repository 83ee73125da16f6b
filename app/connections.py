"""Connections that are watched: one whose client takes nothing of what waits for it is cut off, and its memory is free."""

from __future__ import annotations

import array
import asyncio
import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

if sys.platform == "linux":
    import fcntl
    import termios

LOOKS = 4  # at what waits, in the time that a client has


class WatchedTransport:
    """A transport that is aborted once its client has taken no byte for `seconds` though some wait.

    Closing would not do: it sends what waits first. Everything but writing goes to the transport below.
    """

    def __init__(self, transport: asyncio.Transport, seconds: float, on_cut: Callable[[], None]) -> None:
        self._transport = transport
        self._pause = seconds / LOOKS
        self._on_cut = on_cut
        self._loop = asyncio.get_running_loop()
        self._written = self._taken = self._idle = 0
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)
        if self._timer is None:
            self._idle = 0
            self._timer = self._loop.call_later(self._pause, self._look)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def stop(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        waiting = self._transport.get_write_buffer_size() + self._sent_but_not_taken()
        if not waiting:
            return
        taken = self._written - waiting
        self._idle = 0 if taken > self._taken else self._idle + 1
        self._taken = taken
        if self._idle < LOOKS:
            self._timer = self._loop.call_later(self._pause, self._look)
            return
        self._on_cut()
        self._transport.abort()

    def _sent_but_not_taken(self) -> int:
        """Bytes that the kernel holds until the other side has acknowledged them; 0 where it does not say."""
        if sys.platform != "linux":
            return 0
        held = array.array("i", [0])
        try:
            fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, held)
        except (AttributeError, OSError, ValueError):  # no socket below, or a closed one
            return 0
        return held[0]


class _Watching(asyncio.Protocol):
    """The part of a protocol that hands it a watched transport."""

    seconds: float
    on_cut: Callable[[], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._watched = WatchedTransport(cast(asyncio.Transport, transport), self.seconds, type(self).on_cut)
        super().connection_made(cast(asyncio.Transport, self._watched))

    def connection_lost(self, error: Exception | None) -> None:
        self._watched.stop()
        super().connection_lost(error)


def watched_protocol(seconds: float, on_cut: Callable[[], None]) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol over watched transports. on_cut: called on the event loop for each connection cut off."""
    return type("WatchedProtocol", (_Watching, AutoHTTPProtocol), {"seconds": seconds, "on_cut": staticmethod(on_cut)})
