"""Clients that leave: what they asked for is dropped, streamed or not, running or queued. Over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.api.disconnect import run_until_gone
from app.api.generations import Generations
from app.engine.request import GenerationRequest
from app.metrics import Metrics
from tests.api.support import CHAT, COMPLETIONS, HELLO, samples, served
from tests.synthetic import SyntheticEngine
from tests.waiting import wait_until

ENDLESS = {"messages": HELLO, "ignore_eos": True, "max_tokens": 2000}


@pytest.fixture
def slow() -> SyntheticEngine:
    """Runs only as many rounds as the test allows."""
    return SyntheticEngine(manual=True, max_running=1, max_queued=8)


@pytest.fixture
def url(slow: SyntheticEngine) -> Iterator[str]:
    with served(slow) as url:
        yield url


def connect(url: str, path: str, body: dict[str, Any]) -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 5.0)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    raw.sendall(head.encode() + content)
    return raw


def idle(engine: SyntheticEngine) -> bool:
    return engine.status().running == engine.status().waiting == 0


def check_next(url: str, engine: SyntheticEngine) -> None:
    """Nothing ran on after the client left, and the next request is served."""
    engine.allow()
    reply = httpx.post(url + CHAT, json={"messages": HELLO, "max_tokens": 5})
    assert reply.json()["usage"]["completion_tokens"] == 5
    page = samples(httpx.Client(base_url=url))
    assert page["racer_num_requests_running"] == page["racer_num_requests_waiting"] == 0


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_stream_that_is_dropped(slow: SyntheticEngine, url: str, rounds: int) -> None:
    with connect(url, CHAT, {**ENDLESS, "stream": True}) as raw:
        assert raw.recv(4096).startswith(b"HTTP/1.1 200")  # the headers come before the first token
        assert slow.rounds == 0
        slow.allow(rounds)
        wait_until(lambda: slow.rounds == rounds)
    wait_until(lambda: idle(slow))
    assert slow.rounds == rounds
    check_next(url, slow)


@pytest.mark.parametrize("rounds", [0, 3])
def test_a_whole_answer_that_is_not_waited_for(slow: SyntheticEngine, url: str, rounds: int) -> None:
    with connect(url, CHAT, ENDLESS):
        wait_until(lambda: slow.status().running == 1)
        slow.allow(rounds)
        wait_until(lambda: slow.rounds == rounds)
    wait_until(lambda: idle(slow))
    check_next(url, slow)


@pytest.mark.parametrize("stream", [False, True])
def test_queued_requests_are_dropped(slow: SyntheticEngine, url: str, stream: bool) -> None:
    with connect(url, CHAT, ENDLESS):
        wait_until(lambda: slow.status().running == 1)
        with connect(url, COMPLETIONS, {"prompt": ["a", "b", "c"], "stream": stream}):
            wait_until(lambda: slow.status().waiting == 3)
        wait_until(lambda: slow.status().waiting == 0)
        assert slow.status().running == 1
    wait_until(lambda: idle(slow))
    check_next(url, slow)


def test_a_client_that_times_out(slow: SyntheticEngine, url: str) -> None:
    for _ in range(5):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url + CHAT, json=ENDLESS, timeout=httpx.Timeout(5.0, read=0.05))
        wait_until(lambda: idle(slow))
    check_next(url, slow)


def test_many_clients_that_leave() -> None:
    engine = SyntheticEngine(max_running=4, max_queued=64)
    with served(engine) as url:
        for number in range(40):
            with connect(url, CHAT, {**ENDLESS, "stream": number % 2 == 0}) as raw:
                if number % 3:
                    raw.recv(100)
        wait_until(lambda: idle(engine))
        check_next(url, engine)


def test_a_failed_stream_closes_the_connection() -> None:
    engine = SyntheticEngine(fail_at_step=4)
    with served(engine) as url, connect(url, CHAT, {**ENDLESS, "stream": True}) as raw:
        body = b"".join(iter(lambda: raw.recv(65536), b""))  # up to the end of the connection
        assert b'data: {"error":' in body
        assert b"[DONE]" not in body
        assert b'"stop"' not in body


@pytest.mark.parametrize(("error", "known"), [(BrokenPipeError(), True), (ConnectionResetError(), True), (KeyError(), False)])
def test_a_connection_that_breaks_while_something_is_sent_is_a_client_that_left(error: Exception, known: bool) -> None:
    ends: list[int] = []

    async def never() -> Any:
        await asyncio.Event().wait()

    async def sending() -> None:
        raise error

    async def run() -> object:
        return await run_until_gone(never, sending(), lambda: ends.append(1))

    if known:
        assert asyncio.run(run()) is None
    else:
        with pytest.raises(type(error)):
            asyncio.run(run())
    assert ends == [1]


def test_a_client_that_leaves_while_its_choices_are_queued() -> None:
    """The one on its way in is dropped as well, and the rest never comes in."""
    cancelled: list[int] = []

    class Handle:
        def __init__(self, number: int) -> None:
            self.number = number

        def cancel(self) -> None:
            cancelled.append(self.number)

    class Slow:
        """Takes its time over the second one."""

        taken = 0

        def submit(self, request: GenerationRequest, sink: Any) -> Handle:
            self.taken += 1
            if self.taken == 2:
                generations.cancel()  # on the event loop, meanwhile
            return Handle(self.taken)

    async def made() -> Generations:
        return Generations(Metrics())

    generations, engine = asyncio.run(made()), Slow()
    generations.submit(engine, [GenerationRequest((1,))] * 3)  # type: ignore[arg-type]
    assert engine.taken == 2
    assert sorted(set(cancelled)) == [1, 2]
