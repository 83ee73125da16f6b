"""Errors outside the fields: JSON, types, sizes, routes, the queue, and the unforeseen."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from app.api.errors import MAX_MESSAGE, ApiError, as_api_error
from app.engine.errors import EngineClosed, QueueFull
from app.engine.request import GenerationRequest
from tests.api.support import CHAT, COMPLETIONS, HELLO, check_error, client_of, samples, served
from tests.synthetic import SyntheticEngine
from tests.waiting import wait_until

JSON = {"Content-Type": "application/json"}
POSTS = (CHAT, COMPLETIONS, "/tokenize", "/detokenize")


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"prompt": "a",}',
        b"[]",
        b'"text"',
        b"5",
        b"null",
        b"true",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\xed\xa0\xbd"}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"\x00\x01\x02",
    ],
)
def test_bodies_that_are_no_json_objects(client: TestClient, path: str, body: bytes) -> None:
    error = check_error(client.post(path, content=body, headers=JSON), 400, code="invalid_json")
    assert error["type"] == "invalid_request_error"


def test_a_byte_order_mark_is_no_fault(client: TestClient) -> None:
    assert client.post("/tokenize", content=b'\xef\xbb\xbf{"prompt": "a"}', headers=JSON).status_code == 200


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "image/png", "application/jsonx"])
def test_other_content_types(client: TestClient, kind: str) -> None:
    for path in POSTS:
        check_error(client.post(path, content=b'{"prompt": "a"}', headers={"Content-Type": kind}), 415)
    zipped = client.post(CHAT, content=b"x", headers={**JSON, "Content-Encoding": "gzip"})
    check_error(zipped, 415)


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_content_types(client: TestClient, kind: str) -> None:
    assert client.post("/tokenize", content=b'{"prompt": "a"}', headers={"Content-Type": kind}).status_code == 200


def test_routes_and_methods(client: TestClient) -> None:
    for method, path in (("GET", "/nope"), ("POST", "/v1/chat"), ("GET", "/v1"), ("POST", "/v1/completions/")):
        check_error(client.request(method, path), 404, code="not_found")
    for method, path, allowed in (
        ("GET", CHAT, "POST"),
        ("PUT", COMPLETIONS, "POST"),
        ("POST", "/health", "GET, HEAD"),
        ("DELETE", "/v1/models", "GET, HEAD"),
    ):
        reply = client.request(method, path)
        check_error(reply, 405, code="method_not_allowed")
        assert reply.headers["allow"] == allowed


# -- size ----------------------------------------------------------------------------------------------------------------


def test_bodies_over_the_limit(client: TestClient) -> None:
    big = b'{"prompt": "' + b"a" * 5_000_000 + b'"}'
    check_error(client.post(COMPLETIONS, content=big, headers=JSON), 413, code="body_too_large")

    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b"a" * 50_000

    check_error(client.post(COMPLETIONS, content=chunks(), headers=JSON), 413, code="body_too_large")
    assert client.post(COMPLETIONS, json={"prompt": "a"}).status_code == 200


def test_the_limit_is_a_setting_and_exact() -> None:
    engine = SyntheticEngine()
    with client_of(lambda: engine, max_body_bytes=1024) as client:
        body = b'{"prompt": "a"}'
        assert client.post("/tokenize", content=body.ljust(1024), headers=JSON).status_code == 200
        check_error(client.post("/tokenize", content=body.ljust(1025), headers=JSON), 413)


def test_a_declared_length_is_refused_before_the_body_arrives() -> None:
    with served(SyntheticEngine()) as url, socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 5.0) as raw:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5000000\r\n\r\n"
        raw.sendall(head.encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 413")


def test_a_client_that_sends_on_gets_the_reply() -> None:
    with served(SyntheticEngine()) as url:
        reply = httpx.post(url + CHAT, content=b"a" * 20_000_000, headers=JSON)
        check_error(reply, 413, code="body_too_large")


def test_a_body_cut_short_harms_nobody() -> None:
    with served(SyntheticEngine()) as url:
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 5.0) as raw:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{{"
            raw.sendall(head.encode())
        assert httpx.post(url + CHAT, json={"messages": HELLO}).status_code == 200


def test_other_requests_are_answered_while_a_large_body_is_parsed() -> None:
    ids = [1] * 600_000
    engine = SyntheticEngine()
    with served(engine, max_body_bytes=8 << 20) as url, httpx.Client(base_url=url) as client:
        done = threading.Event()

        def ask() -> None:
            check_error(httpx.post(url + COMPLETIONS, json={"prompt": ids}, timeout=30.0), 400, code="context_length_exceeded")
            done.set()

        thread = threading.Thread(target=ask)
        thread.start()
        slowest = 0.0
        while not done.is_set():
            started = time.monotonic()
            assert client.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - started)
        thread.join()
        assert slowest < 1.0


# -- the queue -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue(stream: bool) -> None:
    engine = SyntheticEngine(manual=True, max_running=1, max_queued=4)
    with client_of(lambda: engine) as client:
        handles = [engine.submit(GenerationRequest((1,)), lambda event: None) for _ in range(5)]
        for _ in range(15):
            reply = client.post(CHAT, json={"messages": HELLO, "stream": stream})
            check_error(reply, 429, code="queue_full")
            assert int(reply.headers["retry-after"]) >= 1
        assert samples(client)["racer_queue_refusals_total"] == 15
        for handle in handles:
            handle.cancel()
        engine.allow()
        wait_until(lambda: engine.status().waiting + engine.status().running == 0)
        assert client.post(CHAT, json={"messages": HELLO, "stream": stream}).status_code == 200


def test_prompts_are_queued_all_or_none() -> None:
    engine = SyntheticEngine(manual=True, max_running=1, max_queued=4)
    with client_of(lambda: engine) as client:
        check_error(client.post(COMPLETIONS, json={"prompt": ["a"] * 6}), 429)
        wait_until(lambda: engine.status().waiting + engine.status().running == 0)
        engine.allow()
        assert client.post(COMPLETIONS, json={"prompt": ["a"] * 5}).status_code == 200


# -- failures ------------------------------------------------------------------------------------------------------------


def test_a_failed_generation_is_a_500_without_details(client: TestClient, engine: SyntheticEngine) -> None:
    engine.fail_at_step = 2
    error = check_error(client.post(CHAT, json={"messages": HELLO, "ignore_eos": True}), 500, code="internal_error")
    assert "synthetic" not in error["message"]
    assert client.post(CHAT, json={"messages": HELLO}).status_code == 200
    assert samples(client)['racer_request_success_total{finished_reason="error"}'] == 1


def test_an_unforeseen_error_is_a_500_without_details(client: TestClient, engine: SyntheticEngine) -> None:
    del engine.codec
    error = check_error(client.post(CHAT, json={"messages": HELLO}), 500, code="internal_error")
    assert "codec" not in error["message"]
    assert samples(client)['racer_http_requests_total{route="/v1/chat/completions",status="5xx"}'] == 1


def test_a_request_may_take_so_long() -> None:
    engine = SyntheticEngine(manual=True)
    with client_of(lambda: engine, request_timeout=0.05) as client:
        check_error(client.post(CHAT, json={"messages": HELLO}), 504, code="request_timeout")
        reply = client.post(CHAT, json={"messages": HELLO, "stream": True})
        assert '"code":"request_timeout"' in reply.text
        wait_until(lambda: engine.status().running == 0)


@pytest.mark.parametrize("setting", ["request_timeout", "body_timeout"])
def test_a_body_may_take_so_long(setting: str) -> None:
    settings: dict[str, Any] = {setting: 0.1}
    with served(SyntheticEngine(), **settings) as url:
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 30.0) as raw:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{{"
            raw.sendall(head.encode())
            assert raw.recv(100).startswith(b"HTTP/1.1 408")
        assert httpx.post(url + CHAT, json={"messages": HELLO}).status_code == 200


def test_engine_errors_have_a_status() -> None:
    assert as_api_error(QueueFull(7)).headers == {"Retry-After": "7"}
    assert as_api_error(EngineClosed()).status == 503
    assert as_api_error(KeyError("secret")).status == 500
    assert "secret" not in as_api_error(KeyError("secret")).message
    assert len(ApiError(400, "x" * 100_000).message) <= MAX_MESSAGE + 1


def test_request_ids(client: TestClient) -> None:
    reply = client.post(CHAT, json={"messages": HELLO})
    assert reply.headers["x-request-id"] == reply.json()["id"]
    assert reply.json()["id"].startswith("chatcmpl-")
    reply = client.post(COMPLETIONS, json={"prompt": "a"})
    assert reply.headers["x-request-id"] == reply.json()["id"]
    assert reply.json()["id"].startswith("cmpl-")
    ids = {client.get(path).headers["x-request-id"] for path in ("/health", "/nope", "/health", CHAT)}
    assert len(ids) == 4


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": []}, "`messages` must have at least 1 item."),
        ({"n": 17}, "`n` must be at most 16."),
        ({"n": 2}, "`n` may be at most 1 here: one API key has no more places."),
        ({"speculative": {"max_nodes": 1000}}, "`speculative.max_nodes` must be from 1 to 24."),
        ({"session_id": "a b"}, "`session_id` must be 1 to 128 printable ASCII characters without a space."),
        ({"speculative": {"drafter": "x"}}, "`speculative.drafter` must be 'racer', 'draft_model', 'hybrid' or 'none'."),
    ],
)
def test_a_refusal_says_what_is_allowed(body: dict[str, Any], message: str) -> None:
    with client_of(SyntheticEngine, max_per_key=1) as client:
        reply = client.post(CHAT, json={"messages": HELLO, **body})
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, message)


@pytest.mark.parametrize(("seconds", "told"), [(0, "1"), (1, "1"), (7, "7")])
def test_nobody_is_told_to_come_again_at_once(seconds: int, told: str) -> None:
    assert as_api_error(QueueFull(seconds)).headers["Retry-After"] == told
