"""Cancels work when its client disconnects. ASGI servers report that only to an app that awaits `receive`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

CLIENT_LEFT = 499  # nginx's status for a client that did not wait for the reply
Result = TypeVar("Result")


async def run_until_gone(receive: Receive, work: Coroutine[Any, Any, Result], on_end: Callable[[], None]) -> Result | None:
    """The result of work, or None when the client left first. on_end is called as soon as either happens.

    The request's body must have been read. A connection that breaks while sending counts as a disconnect.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        on_end()
        left = not working.done()
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
    if left:
        return None
    try:
        return working.result()
    except OSError:
        return None


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
