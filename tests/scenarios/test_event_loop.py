"""Large requests and replies: refused early, worked on away from the event loop, and nobody else waits for them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.api import body as body_module
from app.api.json_text import dump_large
from tests.api.support import CHAT, COMPLETIONS, HELLO, check_alive, check_error, client_of, events, served
from tests.synthetic import SyntheticCodec, SyntheticEngine

JSON_TYPE = "Content-Type: application/json\r\n"
OFF_THE_LOOP = "AnyIO worker thread"


def test_health_and_streams_go_on_while_five_megabytes_come_and_are_refused() -> None:
    engine = SyntheticEngine(manual=True)
    with (
        served(engine) as url,
        httpx.Client(base_url=url) as client,
        httpx.stream("POST", url + CHAT, json={"messages": HELLO, "stream": True}, timeout=60.0) as stream,
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 30.0) as raw,
    ):
        content = stream.iter_raw()
        part = b"a" * 100_000
        chunk = f"{len(part):x}\r\n".encode() + part + b"\r\n"
        raw.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n{JSON_TYPE}Transfer-Encoding: chunked\r\n\r\n".encode())
        got = b""
        for _ in range(20):  # just below the limit, where it is kept
            raw.sendall(chunk)
            assert client.get("/health").status_code == 200
            engine.allow(1)
            got += next(content)
        for _ in range(30):
            raw.sendall(chunk)
            assert client.get("/health").status_code == 200
        assert raw.recv(12) == b"HTTP/1.1 413"
        engine.allow()
        assert events((got + b"".join(content)).decode())[-1] == "[DONE]"


class Watched(SyntheticCodec):
    """Remembers on which threads it worked."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[str] = set()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.threads.add(threading.current_thread().name)
        return super().encode(text, add_special_tokens)

    def encode_chat(self, messages: Any, tools: Any = None) -> list[int]:
        self.threads.add(threading.current_thread().name)
        return super().encode_chat(messages, tools)


@pytest.fixture
def codec() -> Iterator[Watched]:
    codec = Watched()
    yield codec
    assert codec.threads == {OFF_THE_LOOP}


@pytest.mark.parametrize("stream", [False, True])
def test_text_is_made_into_tokens_away_from_the_loop(codec: Watched, stream: bool) -> None:
    engine = SyntheticEngine(codec=codec)
    with client_of(lambda: engine) as client:
        for path, request in ((CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "Hello"})):
            assert client.post(path, json={**request, "stream": stream}).status_code == 200
            assert client.post("/tokenize", json=request).status_code == 200


def test_large_bodies_are_parsed_and_large_replies_written_away_from_the_loop(
    codec: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: dict[str, set[str]] = {"parse": set(), "dump": set()}
    parse = body_module.parse

    def watched_parse(*arguments: Any) -> Any:
        where["parse"].add(threading.current_thread().name)
        return parse(*arguments)

    def watched_dump(reply: dict[str, Any]) -> bytes:
        where["dump"].add(threading.current_thread().name)
        return dump_large(reply)

    monkeypatch.setattr(body_module, "parse", watched_parse)
    monkeypatch.setattr("app.api.generation_routes.dump_large", watched_dump)
    engine = SyntheticEngine(codec=codec, max_context=200_000)
    with client_of(lambda: engine) as client:
        request = {"prompt": "a" * 100_000, "max_tokens": 2000, "ignore_eos": True, "speculative": {"trace": True}}
        reply = client.post(COMPLETIONS, json=request)
        assert reply.json()["usage"]["completion_tokens"] == 2000
        assert len(reply.json()["choices"][0]["trace"]) == 2000
    assert where == {"parse": {OFF_THE_LOOP}, "dump": {OFF_THE_LOOP}}


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_json_that_is_expensive_to_read_is_refused(opening: str) -> None:
    engine = SyntheticEngine()
    with client_of(lambda: engine) as client:
        for content in (f'{{"prompt": {opening * 200_000}', json.dumps({"prompt": "a", "stop": [[]] * 300_000})):
            check_error(client.post(COMPLETIONS, content=content, headers={"Content-Type": "application/json"}), 400)
        check_alive(client)
