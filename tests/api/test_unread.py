"""Clients that do not read what they asked for: it is given up, counted, and holds no memory. Over real sockets."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import httpx
import pytest

from app.api import generations
from app.api.errors import ApiError
from app.api.generations import Generations
from app.connections import LOOKS, WatchedTransport
from app.engine.events import Delta, StepTree, TokenLogprob
from app.metrics import Metrics
from tests.api.support import CHAT, COMPLETIONS, HELLO, samples, served
from tests.synthetic import SyntheticEngine
from tests.waiting import wait_until

SMALL = 4096  # bytes that each side's kernel keeps, about
LONG = {"messages": HELLO, "ignore_eos": True, "max_tokens": 1_000_000, "stream": True}


@contextmanager
def asking(url: str, path: str, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A client that has sent its request and read nothing."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        raw.settimeout(30.0)
        raw.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))
        raw.sendall(head.encode() + content)
        yield raw


def unread(url: str, cause: str) -> float:
    return samples(httpx.Client(base_url=url))[f'racer_unread_replies_total{{cause="{cause}"}}']


def rest_of(raw: socket.socket) -> bytes:
    """Up to the end of the connection, whichever way it ends."""
    parts = []
    try:
        while part := raw.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def new_engine() -> SyntheticEngine:
    return SyntheticEngine(max_context=1_100_000, max_running=2)


def live_generations() -> int:
    gc.collect()
    return sum(type(one) is Generations and one._bytes > 100_000 for one in gc.get_objects())


def test_a_stream_whose_bytes_pile_up_is_ended_and_says_so() -> None:
    engine = new_engine()
    with served(engine, send_buffer=SMALL, unread_bytes=200_000) as url, asking(url, CHAT, LONG) as raw:
        wait_until(lambda: unread(url, "bytes") == 1)
        wait_until(lambda: engine.status().running == 0)
        assert live_generations() == 0
        assert engine.rounds < 100_000
        body = rest_of(raw)  # a client that reads on after all
        assert body.endswith(b"\r\n0\r\n\r\n")  # the body has its end
        *_, last = [line for line in body.splitlines() if line.startswith(b"data: ")]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "stream_not_read"
        assert unread(url, "time") == 0


def test_a_stream_that_nobody_reads_is_cut_off() -> None:
    engine = new_engine()
    with served(engine, send_buffer=SMALL, unread_timeout=0.2) as url, asking(url, CHAT, LONG) as raw:
        wait_until(lambda: unread(url, "time") == 1)
        wait_until(lambda: engine.status().running == 0)
        assert not rest_of(raw).endswith(b"0\r\n\r\n")
        assert unread(url, "bytes") == 0


def test_a_whole_reply_that_nobody_reads_is_cut_off() -> None:
    engine = new_engine()
    body = {"prompt": "ab " * 200_000, "max_tokens": 1, "echo": True}
    with (
        served(engine, send_buffer=SMALL, unread_timeout=0.2, max_prompt_chars=1_000_000) as url,
        asking(url, COMPLETIONS, body) as raw,
    ):
        wait_until(lambda: unread(url, "time") == 1)
        assert 0 < len(rest_of(raw)) < 600_000


def test_a_stream_that_is_read_late_but_in_time_is_whole() -> None:
    engine = new_engine()
    with (
        served(engine, send_buffer=SMALL) as url,
        asking(url, CHAT, {**LONG, "max_tokens": 3000}) as raw,
    ):
        wait_until(lambda: engine.status().running == 0 and engine.rounds > 1)  # all of it waits
        assert b"data: [DONE]" in rest_of(raw)
        assert unread(url, "bytes") == unread(url, "time") == 0


# -- the watch, without a clock ------------------------------------------------------------------------------------------


class SlowTransport:
    """A transport whose client takes what the test says."""

    def __init__(self) -> None:
        self.waiting = 0
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.waiting += len(data)

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def get_extra_info(self, name: str) -> None:
        return None

    def abort(self) -> None:
        self.aborted = True


class Clock:
    """Calls what was to be called later, when the test says."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> Clock:
        self.calls.append(call)
        return self

    def tick(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


Watched = tuple[WatchedTransport, SlowTransport, Clock, list[int]]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    clock, below, cuts = Clock(), SlowTransport(), list[int]()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    return WatchedTransport(cast(asyncio.Transport, below), 60.0, lambda: cuts.append(1)), below, clock, cuts


def test_a_slow_reader_is_let_be(watched: Watched) -> None:
    transport, below, clock, cuts = watched
    transport.write(b"x" * 1000)
    for _ in range(50 * LOOKS):
        for _ in range(LOOKS - 1):
            transport.write(b"x")  # what is written meanwhile does not hide that something was taken
            clock.tick()
        below.waiting -= 1
        clock.tick()
    assert not below.aborted
    assert not cuts


def test_who_takes_nothing_is_cut_off_once(watched: Watched) -> None:
    transport, below, clock, cuts = watched
    transport.write(b"x" * 1000)
    for _ in range(LOOKS - 1):
        transport.write(b"x")  # written, not taken
        clock.tick()
        assert not below.aborted
    clock.tick()
    assert below.aborted
    assert cuts == [1]
    assert not clock.calls


def test_time_without_anything_to_take_does_not_count(watched: Watched) -> None:
    transport, below, clock, _ = watched
    for _ in range(3 * LOOKS):
        transport.write(b"x")
        below.waiting = 0
        clock.tick()
        assert not clock.calls
    transport.write(b"x")
    for _ in range(LOOKS - 1):
        clock.tick()
    assert not below.aborted


# -- what waits, in bytes ------------------------------------------------------------------------------------------------


def deep_size(thing: object, seen: set[int]) -> int:
    if id(thing) in seen or thing is None:
        return 0
    seen.add(id(thing))
    parts: tuple[object, ...] = ()
    if isinstance(thing, tuple):
        parts = thing
    elif hasattr(thing, "__slots__"):
        parts = tuple(getattr(thing, name) for name in thing.__slots__)
    return sys.getsizeof(thing) + sum(deep_size(part, seen) for part in parts)


def scores(count: int, top: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(-i / 7, tuple((1000 + i + k, -k / 3 - i) for k in range(top))) for i in range(count))


@pytest.mark.parametrize(
    "event",
    [
        Delta((1000,), "word", ("target",)),
        Delta(tuple(range(1000, 1010)), "a few words more or less, of many tokens", ("retrieval",) * 9 + ("target",)),
        Delta((1000,), "wörter" * 20, ("target",), logprobs=scores(1, 20)),
        Delta((1000,), "x", ("target",), prompt_logprobs=(None, *scores(500, 5))),
        Delta((1000,), "x", ("target",), tree=StepTree(tuple(range(300, 364)), tuple(range(400, 464)), ("target",) * 64, (0,))),
    ],
)
def test_the_size_of_an_event_is_about_right(event: Delta) -> None:
    real = deep_size(event, set())
    assert real / 2 < generations._bytes_of(event) < 2 * real + 400


def test_only_what_waits_behind_the_next_event_counts() -> None:
    """One event may be larger than the bound: its client is about to get it."""

    async def taken(sizes: list[int]) -> list[str]:
        waiting = Generations(Metrics(), most_bytes=20_000)
        waiting.open = 1
        for size in sizes:
            waiting._deliver(0, Delta((1,), "x" * size, ("target",)))
        await asyncio.sleep(0)
        found = []
        for _ in sizes:
            item = await waiting.next()
            assert item is not None
            found.append(item[1].text)
        return found

    assert asyncio.run(taken([1_000_000, 10, 10])) == ["x" * 1_000_000, "x" * 10, "x" * 10]
    with pytest.raises(ApiError, match="did not read"):
        asyncio.run(taken([10, 1_000_000]))
