"""What the API tests share: an app around a synthetic engine, in process and behind a real socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from app.api.service import Service
from app.connections import watched_protocol
from app.engine.interface import EngineInterface
from app.main import create_app
from app.settings import Settings
from tests.waiting import wait_until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
BASE: dict[str, dict[str, Any]] = {CHAT: {"messages": HELLO}, COMPLETIONS: {"prompt": "Hello"}}
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
STREAMS = pytest.mark.parametrize("stream", [False, True])


def new_settings(**changes: Any) -> Settings:
    names = "testserver,x"  # of test clients in the process, and in requests written by hand
    return Settings(**{"target": "synthetic", "shutdown_grace": 0.0, "allowed_hosts": names, **changes})


@contextmanager
def client_of(factory: Callable[[], EngineInterface], *, wait: bool = True, **changes: Any) -> Iterator[TestClient]:
    """A client of an app in this process; wait: until the engine is there."""
    failures: list[Exception] = []
    app = create_app(new_settings(**changes), factory, failures.append)
    app.state.failures = failures
    with TestClient(app, raise_server_exceptions=False) as client:
        if wait:
            wait_until(lambda: app.state.service.status() is not None)
        yield client


@contextmanager
def served(engine: EngineInterface, *, send_buffer: int | None = None, **changes: Any) -> Iterator[str]:
    """The base URL of a real server with this engine."""
    app = create_app(new_settings(**changes), lambda: engine)
    with serving(app, send_buffer) as url:
        wait_until(lambda: app.state.service.status() is not None)
        yield url


@contextmanager
def serving(app: FastAPI, send_buffer: int | None = None) -> Iterator[str]:
    """send_buffer: bytes that the kernel keeps of what a client has not taken."""
    listener = socket.socket()
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # inherited by what is accepted
    listener.bind(("127.0.0.1", 0))
    service: Service = app.state.service
    protocol = watched_protocol(service.settings, service.cut_off)
    server = uvicorn.Server(uvicorn.Config(app, http=protocol, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10.0)


def events(body: str) -> list[Any]:
    """The payloads of a raw event stream, which must be framed by LF and hold nothing but data and comments."""
    assert "\r" not in body
    assert body.endswith("\n\n")
    payloads = []
    for block in body[:-2].split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        assert len(lines) == 1, lines
        assert lines[0].startswith("data: ")
        data = lines[0].removeprefix("data: ")
        payloads.append(data if data == "[DONE]" else json.loads(data))
    return payloads


def stream(client: TestClient, path: str, body: dict[str, Any]) -> list[Any]:
    reply = client.post(path, json={**body, "stream": True})
    assert reply.status_code == 200, reply.text
    return events(reply.text)


def text_of(payloads: list[Any], index: int = 0) -> str:
    """The joined deltas of one choice."""
    choices = [choice for payload in payloads if payload != "[DONE]" for choice in payload["choices"]]
    own = [choice for choice in choices if choice["index"] == index]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in own)


def ask(client: TestClient, path: str, **fields: Any) -> Any:
    return client.post(path, json={**BASE[path], **fields})


def check_alive(client: TestClient) -> None:
    """A normal request gets the normal answer."""
    reply = ask(client, CHAT, temperature=0, max_tokens=4)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] == 4


def check_error(reply: Any, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error object in OpenAI's shape and below 8 KB."""
    assert reply.status_code == status, reply.text
    assert len(reply.content) < 8192
    body = reply.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert "Traceback" not in error["message"]
    if param is not None:
        assert error["param"] == param, error
    if code is not None:
        assert error["code"] == code, error
    return dict(error)


def samples(client: Any) -> dict[str, float]:
    """The metrics page: series with labels -> value."""
    return parse_page(client.get("/metrics").text)


def parse_page(text: str) -> dict[str, float]:
    lines = text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")}
