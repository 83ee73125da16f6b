"""Requests that are turned away before any work is done for them, and places that come back on every way out."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from app.engine.request import GenerationRequest
from app.engine.scheduler.wait import WaitEstimate
from tests.api.support import BOTH, CHAT, COMPLETIONS, HELLO, STREAMS, ask, check_error, client_of, samples, served
from tests.synthetic import SyntheticCodec, SyntheticEngine
from tests.waiting import wait_until

JSON_TYPE = "Content-Type: application/json\r\n"
KEYS: dict[str, Any] = {"api_keys": "first,second"}


def as_key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


class CountingCodec(SyntheticCodec):
    """Counts what is tokenised."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.encoded += 1
        return super().encode(text, add_special_tokens)


@pytest.fixture
def codec() -> CountingCodec:
    return CountingCodec()


@pytest.fixture
def engine(codec: CountingCodec) -> Iterator[SyntheticEngine]:
    engine = SyntheticEngine(manual=True, max_running=1, max_queued=2, codec=codec)
    yield engine
    engine.close()


def fill(engine: SyntheticEngine, count: int) -> list[Any]:
    return [engine.submit(GenerationRequest((1,)), lambda event: None) for _ in range(count)]


# -- the queue -------------------------------------------------------------------------------------------------------------


@BOTH
def test_a_full_queue_is_known_before_anything_is_tokenised(engine: SyntheticEngine, codec: CountingCodec, path: str) -> None:
    engine.retry_after = 7
    with client_of(lambda: engine, max_running=1, max_queued=2) as client:
        fill(engine, 3)
        reply = ask(client, path)
        check_error(reply, 429, code="queue_full")
        assert reply.headers["retry-after"] == "7"
        assert codec.encoded == 0


def test_a_full_queue_is_known_before_the_body_is_read(engine: SyntheticEngine) -> None:
    with served(engine) as url, socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 5.0) as raw:
        fill(engine, 3)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{JSON_TYPE}Content-Length: 500000\r\n\r\n"
        raw.sendall(head.encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 429")


def test_more_prompts_than_places_are_refused_before_they_are_tokenised(engine: SyntheticEngine, codec: CountingCodec) -> None:
    with client_of(lambda: engine) as client:
        fill(engine, 1)
        for body in ({"prompt": ["a", "b", "c"]}, {"prompt": "a", "n": 3}):
            check_error(client.post(COMPLETIONS, json=body), 429, code="queue_full")
        assert codec.encoded == 0


def test_places_are_kept_for_those_who_are_being_tokenised() -> None:
    """What is on its way into the queue counts, so that nothing is tokenised in vain."""
    inside, go_on = threading.Semaphore(0), threading.Event()

    class Slow(SyntheticCodec):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            inside.release()
            go_on.wait(30.0)
            return super().encode(text, add_special_tokens)

    engine = SyntheticEngine(max_running=1, max_queued=1, codec=Slow())
    statuses: list[int] = []
    with client_of(lambda: engine) as client:
        threads = [
            threading.Thread(target=lambda: statuses.append(client.post(COMPLETIONS, json={"prompt": "a"}).status_code))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
            assert inside.acquire(timeout=30.0)
        for _ in range(3):
            check_error(client.post(COMPLETIONS, json={"prompt": "a"}), 429, code="queue_full")
        assert not inside.acquire(blocking=False)
        go_on.set()
        for thread in threads:
            thread.join(30.0)
        assert statuses == [200, 200]
        assert client.post(COMPLETIONS, json={"prompt": "a"}).status_code == 200


def test_a_client_that_sends_its_body_slowly_keeps_no_place(engine: SyntheticEngine) -> None:
    engine.allow()
    with served(engine) as url:
        slow = []
        for _ in range(5):  # more than there are places
            raw = socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 5.0)
            raw.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{JSON_TYPE}Content-Length: 50\r\n\r\n{{".encode())
            slow.append(raw)
        assert httpx.post(url + CHAT, json={"messages": HELLO}).status_code == 200
        for raw in slow:
            raw.close()


@pytest.mark.parametrize(
    ("ends", "ahead", "lanes", "seconds"),
    [([], 9, 1, 1), ([3.0], 5, 2, 8), ([0.01], 5, 2, 1), ([90.0], 9, 1, 60), ([4.0, 12.0], 2, 1, 10)],
)
def test_the_wait_is_estimated_from_what_ran_lately(ends: list[float], ahead: int, lanes: int, seconds: int) -> None:
    pace = WaitEstimate()
    for end in ends:
        pace.ended(end)
    assert pace.wait(ahead, lanes) == seconds


# -- the share of one key --------------------------------------------------------------------------------------------------


@STREAMS
def test_a_key_has_so_many_generations_and_others_are_not_hindered(codec: CountingCodec, stream: bool) -> None:
    engine = SyntheticEngine(manual=True, codec=codec)
    with served(engine, **KEYS, max_per_key=2) as url, httpx.Client(base_url=url, headers=as_key("first")) as client:
        body = {"messages": HELLO, "stream": stream}
        threads = [
            threading.Thread(target=lambda: httpx.post(url + CHAT, json=body, headers=as_key("first"))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: engine.status().running == 2)
        before = codec.encoded
        reply = client.post(CHAT, json=body)
        check_error(reply, 429, code="key_concurrency")
        assert int(reply.headers["retry-after"]) >= 1 and codec.encoded == before
        assert samples(client)["racer_key_refusals_total"] == 1
        engine.allow()
        assert client.post(CHAT, json=body, headers=as_key("second")).status_code == 200
        for thread in threads:
            thread.join(30.0)
        assert client.post(CHAT, json=body).status_code == 200


def test_each_prompt_is_a_generation_of_its_own(engine: SyntheticEngine) -> None:
    with client_of(lambda: engine, **KEYS, max_per_key=2) as client:
        error = check_error(client.post(COMPLETIONS, json={"prompt": ["a"] * 3}, headers=as_key("first")), 400, "prompt")
        assert "at most 2 prompts" in error["message"]
        check_error(client.post(COMPLETIONS, json={"prompt": "a", "n": 3}, headers=as_key("first")), 400, "n")
        engine.allow()
        for _ in range(3):
            reply = client.post(COMPLETIONS, json={"prompt": ["a"] * 2}, headers=as_key("first"))
            assert reply.status_code == 200


def nothing_held(client: TestClient) -> bool:
    admission = client.app.state.service.admission  # type: ignore[attr-defined]
    return not admission._held and not admission._arriving


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"messages": []}',
        b'{"messages": [{"role": "user", "content": "a"}], "model": "other"}',
        b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 100000}',
        json.dumps({"messages": HELLO, "stream": True, "max_tokens": 100000}).encode(),
        b"a" * 3_000_000,
        json.dumps({"messages": HELLO}).encode(),
        json.dumps({"messages": HELLO, "stream": True}).encode(),
    ],
)
def test_every_way_out_gives_the_places_back(body: bytes) -> None:
    engine = SyntheticEngine()
    with client_of(lambda: engine, max_per_key=1) as client:
        for _ in range(2):  # a place that was lost would make the second 429
            reply = client.post(CHAT, content=body, headers={"Content-Type": "application/json"})
            assert reply.status_code != 429, reply.text
            assert nothing_held(client)


def test_failures_give_the_places_back(engine: SyntheticEngine, codec: CountingCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.allow()
    with client_of(lambda: engine, max_per_key=1) as client:
        for stream in (False, True):
            engine.fail_at_step = engine.rounds + 1
            client.post(CHAT, json={"messages": HELLO, "stream": stream})
            wait_until(lambda: nothing_held(client))
        monkeypatch.setattr(codec, "read_chat", lambda *arguments, **more: 1 / 0)
        check_error(client.post(CHAT, json={"messages": HELLO}), 500)
        wait_until(lambda: nothing_held(client))


@STREAMS
def test_clients_that_leave_give_their_places_back(stream: bool) -> None:
    engine = SyntheticEngine(manual=True)
    with served(engine, max_per_key=1) as url:
        content = json.dumps({"messages": HELLO, "stream": stream}).encode()
        for sent in (content, content[:-5]):  # the second leaves before its body is complete
            with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 5.0) as raw:
                raw.sendall(
                    f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{JSON_TYPE}Content-Length: {len(content)}\r\n\r\n".encode() + sent
                )
                if sent == content:
                    wait_until(lambda: engine.status().running == 1)
        engine.allow()
        wait_until(lambda: httpx.post(url + CHAT, json={"messages": HELLO}).status_code == 200)
