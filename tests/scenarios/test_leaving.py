"""Streams that fail, clients that leave in every stage, and a stuck worker: the real engine behind a real socket."""

from __future__ import annotations

import gc
import json
import random
import socket
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from app.engine.engine import Engine
from tests.api.support import COMPLETIONS, check_error, samples, served
from tests.engine.drafting import FLAT
from tests.scenarios.turnstile import Turnstile
from tests.tiny import tiny_engine
from tests.waiting import wait_until

JSON_TYPE = "Content-Type: application/json\r\n"
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
LONG: dict[str, Any] = {"prompt": "ab" * 50, "max_tokens": 100, "temperature": 0}  # 13 chunks of 8 tokens
SHORT: dict[str, Any] = {"prompt": "ab", "max_tokens": 20, "temperature": 0}
CHUNKS = 13


class Served:
    """A server, its engine, and the turnstile before its model."""

    def __init__(self, engine: Engine, url: str) -> None:
        self.engine, self.url = engine, url
        self.client = httpx.Client(base_url=url, timeout=60.0)
        self.plain = self.ask(speculative={"drafter": "none"})
        self.turnstile = Turnstile(engine)

    def connect(self, body: dict[str, Any]) -> socket.socket:
        raw = socket.create_connection(("127.0.0.1", int(self.url.rsplit(":", 1)[1])), 30.0)
        content = json.dumps(body).encode()
        raw.sendall(
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n{JSON_TYPE}Content-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        return raw

    def ask(self, **fields: Any) -> str:
        reply = self.client.post(COMPLETIONS, json={**SHORT, **fields})
        assert reply.status_code == 200, reply.text
        return str(reply.json()["choices"][0]["text"])

    def idle(self) -> bool:
        status = self.engine.status()
        return status.running == status.waiting == 0

    def check_next(self) -> None:
        """Nothing is held, nothing is generated any more, and the next request gets the normal answer."""
        assert self.idle() and self.engine.status().kv_usage_ratio == 0
        tokens = samples(self.client)["racer_generation_tokens_total"]
        self.turnstile.allow()
        assert self.ask() == self.plain
        page = samples(self.client)
        assert page["racer_generation_tokens_total"] == tokens + 20
        assert (
            page["racer_num_requests_running"] == page["racer_num_requests_waiting"] == page["racer_kv_cache_usage_ratio"] == 0
        )


@contextmanager
def running(**settings: Any) -> Iterator[Served]:
    server_settings = settings.pop("server", {})
    config = {
        "eos": frozenset(),
        "prefill_chunk": 8,
        "max_running": 1,
        "max_queued": 4,
        "max_nodes": 8,
        "cost_curve": FLAT,
        **settings,
    }
    with tiny_engine(**config) as engine, served(engine, **server_settings) as url:
        server = Served(engine, url)
        try:
            yield server
        finally:
            server.turnstile.allow()
            server.client.close()


@STREAMS
@pytest.mark.parametrize("passes", [0, 3, CHUNKS, CHUNKS + 4], ids=["before", "prefill", "first-token", "decode"])
def test_a_client_that_leaves_frees_everything_within_a_step(passes: int, stream: bool) -> None:
    with running() as server:
        turnstile = server.turnstile
        turnstile.allow(passes)
        with server.connect({**LONG, "stream": stream}):
            wait_until(lambda: turnstile.passed == passes and turnstile.at_gate == passes + 1)
            assert server.engine.status().running == 1 and server.engine.status().kv_usage_ratio > 0
            session = weakref.ref(server.engine._scheduler.pool.running[0])
            assert server.engine.status().free_places == 4
        wait_until(lambda: server.engine.status().free_places == 5)  # the server knows that the client is gone
        turnstile.allow(1)  # the step that was under way
        wait_until(server.idle)
        assert turnstile.passed == passes + 1
        gc.collect()
        wait_until(lambda: gc.collect() is not None and session() is None)  # with its cache and its automaton
        server.check_next()


@STREAMS
def test_a_client_that_leaves_while_it_is_queued(stream: bool) -> None:
    with running() as server:
        with server.connect(LONG):
            wait_until(lambda: server.turnstile.at_gate == 1)
            with server.connect({**LONG, "stream": stream}):
                wait_until(lambda: server.engine.status().waiting == 1)
            wait_until(lambda: server.engine.status().free_places == 4)
            server.turnstile.allow(1)
            wait_until(lambda: server.engine.status().waiting == 0)
            assert server.engine.status().running == 1
        wait_until(lambda: server.engine.status().free_places == 5)
        server.turnstile.allow(1)
        wait_until(server.idle)
        server.check_next()


@pytest.mark.parametrize("body", [{**SHORT, "n": 0}, {**SHORT, "prompt": "a" * 300}, {**SHORT, "max_tokens": 100_000}])
def test_what_is_known_before_the_stream_is_no_stream(body: dict[str, Any]) -> None:
    with running() as server:
        reply = server.client.post(COMPLETIONS, json={**body, "stream": True})
        check_error(reply, 400)
        assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("fail_at", [1, 2, 10], ids=["prefill", "second", "decode"])
def test_a_forward_that_raises_ends_its_own_stream_with_an_error(fail_at: int) -> None:
    with running() as server:
        server.turnstile.fail_at = fail_at
        with server.connect({**LONG, "prompt": "ab" * 4, "stream": True}) as raw:
            wait_until(lambda: server.turnstile.at_gate == 1)
            other = server.connect(SHORT)
            wait_until(lambda: server.engine.status().waiting == 1)
            server.turnstile.allow()
            content = b"".join(iter(lambda: raw.recv(65536), b"")).decode()  # to the end of the connection
            *_, last = [line for line in content.splitlines() if line.startswith("data: ")]
            error = json.loads(last.removeprefix("data: "))["error"]
            assert error["code"] == "internal_error" and "made to fail" not in content
            assert "[DONE]" not in content and '"finish_reason":"' not in content
            with other:
                assert b"200 OK" in other.recv(65536)  # the one that waited behind it
        assert samples(server.client)['racer_request_success_total{finished_reason="error"}'] == 1
        wait_until(server.idle)
        server.check_next()


def test_a_stuck_worker_turns_health_red_and_green_again() -> None:
    with running(server={"stuck_after": 0.2}) as server:
        assert server.client.get("/health").status_code == 200
        with server.connect({**SHORT, "stream": True}) as raw:
            wait_until(lambda: server.client.get("/health").status_code == 503)
            assert server.client.get("/health").json()["status"] == "failed"
            check_error(server.client.post(COMPLETIONS, json=SHORT), 503, code="failed")
            assert server.client.get("/ready").status_code == 503
            server.turnstile.allow()
            content = b"".join(iter(lambda: raw.recv(65536), b"")).decode()
            assert "data: [DONE]" in content
        wait_until(lambda: server.client.get("/health").status_code == 200)
        server.check_next()


def test_fifty_streams_dropped_at_any_moment_wedge_nothing() -> None:
    chance = random.Random(7)
    with running(max_running=4, max_queued=64) as server:
        server.turnstile.allow()
        for number in range(50):
            with server.connect({**LONG, "stream": True}), server.connect({**LONG, "stream": number % 2 == 0}) as raw:
                for _ in range(chance.randrange(4)):  # from before the headers to the middle of the answer
                    raw.recv(chance.choice((1, 100, 2000)))
            assert server.client.get("/health").status_code == 200
            if number % 10 == 0:
                assert server.ask() == server.plain
        wait_until(server.idle)
        server.check_next()
