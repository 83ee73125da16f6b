"""Requests that do not arrive: the connection is ended before anybody asks for a key."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest

from tests.api.support import CHAT, HELLO, served
from tests.synthetic import SyntheticEngine

SOON = 0.3


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 30.0) as raw:
        yield raw


def everything(raw: socket.socket) -> bytes:
    """What comes until the server closes; a timeout of the socket if it does not."""
    found = b""
    with suppress(ConnectionResetError):
        while data := raw.recv(4096):
            found += data
    return found


@pytest.fixture
def url() -> Iterator[str]:
    with served(SyntheticEngine(), api_keys="key", header_timeout=SOON, body_timeout=SOON) as url:
        yield url


def test_heads_that_do_not_end(url: str) -> None:
    """Fifty at once, and a normal request meanwhile and afterwards."""
    key = {"Authorization": "Bearer key"}
    raws = [socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 30.0) for _ in range(50)]
    for raw in raws:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    assert httpx.post(url + CHAT, json={"messages": HELLO, "max_tokens": 1}, headers=key).status_code == 200
    for raw in raws:
        reply = everything(raw)
        assert reply.startswith(b"HTTP/1.1 408 ") and b'"code": "request_timeout"' in reply
        raw.close()
    assert httpx.post(url + CHAT, json={"messages": HELLO, "max_tokens": 1}, headers=key).status_code == 200


def test_a_head_that_comes_byte_by_byte(url: str) -> None:
    with connected(url) as raw:
        over = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ")
                while not over.wait(SOON / 20):
                    raw.sendall(b"a")

        thread = threading.Thread(target=drip)
        thread.start()
        everything(raw)
        over.set()
        thread.join()


def test_a_connection_that_sends_nothing(url: str) -> None:
    with connected(url) as raw:
        assert everything(raw) == b""


def test_a_second_head_on_one_connection(url: str) -> None:
    with connected(url) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert raw.recv(4096).startswith(b"HTTP/1.1 200")
        raw.sendall(b"GET /health HT")
        assert b"HTTP/1.1 408 " in everything(raw)


@pytest.mark.parametrize("authorization", ["", "Authorization: Bearer key\r\n"])
def test_bodies_that_do_not_end(url: str, authorization: str) -> None:
    """Without a key the refusal comes at once; what was announced is then not waited for, however it drips."""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{authorization}Content-Type: application/json\r\nContent-Length: 5000\r\n\r\n"
    with connected(url) as raw:
        raw.sendall(head.encode())
        status = b"408" if authorization else b"401"
        assert raw.recv(4096).startswith(b"HTTP/1.1 " + status)
        over = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not over.wait(SOON / 20):
                    raw.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        everything(raw)
        over.set()
        thread.join()


def test_a_request_in_time_is_not_cut_short() -> None:
    """The answer may take longer than its request had."""
    engine = SyntheticEngine(step_seconds=0.1, acceptance=0.0)
    with served(engine, header_timeout=0.2, body_timeout=0.2) as url, httpx.Client(base_url=url) as client:
        for _ in range(2):
            reply = client.post(CHAT, json={"messages": HELLO, "max_tokens": 8, "ignore_eos": True}, timeout=30.0)
            assert reply.json()["usage"]["completion_tokens"] == 8
