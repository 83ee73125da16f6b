"""Timeouts of connections: ends those whose client stops reading the reply, or does not send its request in time.

uvicorn has a timeout for idle keep-alive connections only.
"""

from __future__ import annotations

import array
import asyncio
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from app.settings import Settings

if sys.platform == "linux":
    import fcntl
    import termios

_BODY = json.dumps(
    {
        "error": {
            "message": "The head of the request did not arrive in time.",
            "type": "timeout_error",
            "param": None,
            "code": "request_timeout",
        }
    }
).encode()
TOO_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)
LOOKS = 4  # checks of the waiting bytes within the timeout


class WatchedTransport:
    """A transport that is aborted when bytes wait and the client has read none for `seconds`.

    Closing it would first send the waiting bytes. Everything but writing is passed on to the wrapped transport.
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
        """Bytes in the kernel that the client has not acknowledged; 0 if the system cannot say."""
        if sys.platform != "linux":
            return 0
        held = array.array("i", [0])
        try:
            fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, held)
        except (AttributeError, OSError, ValueError):  # not a socket, or a closed one
            return 0
        return held[0]


class _Watching(asyncio.Protocol):
    """Mixin for uvicorn's protocol: watches its transport, and closes connections whose request does not arrive in time.

    It applies before API keys are checked, since keys come with the request's head.
    """

    unread: float
    head: float
    body: float
    on_cut: Callable[[], None]
    cycle: Any  # uvicorn's, of the latest request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._watched = WatchedTransport(cast(asyncio.Transport, transport), self.unread, type(self).on_cut)
        self._loop = asyncio.get_running_loop()
        self._begun = False  # part of a request has arrived
        self._deadline: asyncio.TimerHandle | None = None
        super().connection_made(cast(asyncio.Transport, self._watched))
        self._set_deadline(self.head)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        answered = self.cycle is None or self.cycle.response_complete
        self._begun = answered
        if not answered:  # the reader of the body has its own timeout
            self._clear_deadline()
        elif self._deadline is None:  # wait for the next head, or for the unread body of a request that was answered
            self._set_deadline(self.head if self.cycle is None or not self.cycle.more_body else self.body)

    def connection_lost(self, error: Exception | None) -> None:
        self._clear_deadline()
        self._watched.stop()
        super().connection_lost(error)

    def _set_deadline(self, seconds: float) -> None:
        self._deadline = self._loop.call_later(seconds, self._too_late)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if self._watched.is_closing():
            return
        if self._begun and (self.cycle is None or not self.cycle.more_body):
            self._watched.write(TOO_LATE)
        self._watched.close()


def watched_protocol(settings: Settings, on_cut: Callable[[], None]) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol over watched transports. on_cut: called on the event loop for each client cut off."""
    members = {
        "unread": settings.unread_timeout,
        "head": settings.header_timeout,
        "body": settings.body_timeout,
        "on_cut": staticmethod(on_cut),
    }
    return type("WatchedProtocol", (_Watching, AutoHTTPProtocol), members)
