"""The server under test before the clock runs: is it there, is it ready, what does it serve, does it take these requests?"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import httpx

from bench.errors import BenchError
from bench.load.client import LoadClient, error_message
from bench.load.plan import LoadPlan, Way

POLL = 0.25  # seconds between two looks at a server that is not ready
PROBE = "Hello"


class ServerError(BenchError):
    """The server cannot be measured; the message is one line and says why."""


async def await_ready(http: httpx.AsyncClient, plan: LoadPlan) -> dict[str, Any]:
    """What /ready says; nothing from servers that have no such route. Raises ServerError after `plan.wait` seconds."""
    deadline = time.monotonic() + plan.wait
    told = False
    while True:
        try:
            reply = await http.get("/ready", timeout=5.0)
        except httpx.HTTPError as error:
            reason = f"cannot be reached ({str(error) or type(error).__name__})"
        else:
            if reply.status_code == httpx.codes.NOT_FOUND:
                return {}
            body = _json(reply)
            if reply.status_code == httpx.codes.OK:
                return body
            reason = f"is not ready (HTTP {reply.status_code}, {body.get('state', 'state unknown')})"
            if body.get("state") == "failed":
                raise ServerError(f"the server at {plan.url} has failed: its log says why")
        if time.monotonic() >= deadline:
            raise ServerError(f"the server at {plan.url} {reason}; --wait gives it longer than {plan.wait:g} s")
        if not told:
            sys.stderr.write(f"the server at {plan.url} {reason}; waiting up to {plan.wait:g} s\n")
            told = True
        await asyncio.sleep(POLL)


async def first_model(http: httpx.AsyncClient, plan: LoadPlan) -> str | None:
    """The id that requests name. Raises ServerError where the server wants another key."""
    try:
        reply = await http.get("/v1/models")
    except httpx.HTTPError as error:
        raise ServerError(f"the server at {plan.url} does not answer: {str(error) or type(error).__name__}") from error
    if reply.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise ServerError(f"the server at {plan.url} wants an API key: give RACER_BENCH_KEY or --api-key")
    try:
        return str(_json(reply)["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        return None


async def check_ways(http: httpx.AsyncClient, client: LoadClient, plan: LoadPlan) -> None:
    """One token of each way. Raises ServerError with what the server says to a request that it will never take."""
    for way in plan.ways:
        body = {**client.body(way, PROBE, plan.seed), "max_tokens": 1, "stream": False}
        del body["stream_options"]
        try:
            reply = await http.post(plan.path, json=body, timeout=plan.timeout)
        except httpx.HTTPError as error:
            raise ServerError(f"the server at {plan.url} does not answer: {str(error) or type(error).__name__}") from error
        if 400 <= reply.status_code < 500 and reply.status_code != httpx.codes.TOO_MANY_REQUESTS:
            raise ServerError(f"the server refuses {_named(way)}: {error_message(reply.content)} (HTTP {reply.status_code})")


def _named(way: Way) -> str:
    return f"--speculative {way.name!r}" if way.speculative else "these requests"


def _json(reply: httpx.Response) -> dict[str, Any]:
    try:
        body: Any = reply.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
