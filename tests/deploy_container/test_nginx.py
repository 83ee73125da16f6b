"""A real nginx with the example configuration before two replicas: streams, errors, and which replica is asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from app.api.service import Service
from app.main import create_app
from tests.api.support import CHAT, COMPLETIONS, HELLO, check_error, client_of, events, new_settings, serving
from tests.deploy_container.nginx import nginx_before
from tests.servers import TcpServer, free_port
from tests.synthetic import SyntheticEngine
from tests.waiting import wait_until

TOKENS = 12
MESSAGES: list[Any] = HELLO


@dataclass(frozen=True, slots=True)
class Replica:
    engine: SyntheticEngine
    service: Service
    url: str

    @property
    def asked(self) -> int:
        return len(self.engine.requests)


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Replica]]:
    """Two that run a round only when they are told to, and emit one token in each."""
    monkeypatch.setattr(Service, "keep_alive_after", 0.02)
    with ExitStack() as servers:
        found = []
        for _ in range(2):
            engine = SyntheticEngine(acceptance=0.0, manual=True, max_running=1, max_queued=1)
            servers.callback(engine.close)
            app = create_app(new_settings(api_keys="key"), _factory(engine))
            found.append(Replica(engine, app.state.service, servers.enter_context(serving(app))))
        wait_until(lambda: all(replica.service.status() is not None for replica in found))
        yield found


def _factory(engine: SyntheticEngine) -> Any:
    return lambda: engine


@pytest.fixture
def proxy(replicas: list[Replica], tmp_path: Path) -> Iterator[str]:
    with nginx_before([replica.url.removeprefix("http://") for replica in replicas], tmp_path) as url:
        yield url


@pytest.fixture
def client(proxy: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": "Bearer key", "X-Session-Id": "conversation"}
    with httpx.Client(base_url=proxy, headers=headers, timeout=30.0) as client:
        yield client


def asked_one(replicas: list[Replica]) -> Replica:
    """The only one that was asked so far."""
    wait_until(lambda: any(replica.asked for replica in replicas))
    (found,) = [replica for replica in replicas if replica.asked]
    return found


def one_chunk_a_round() -> dict[str, Any]:
    """A request whose every token is a whole character."""
    with client_of(SyntheticEngine) as reference:
        for number in range(100):
            body = {"prompt": f"prompt {number}", "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
            if reference.post(COMPLETIONS, json=body).json()["choices"][0]["text"].isascii():
                return body
    raise AssertionError("no prompt gives a plain text")


def test_chunks_arrive_one_by_one(client: httpx.Client, replicas: list[Replica]) -> None:
    """The engine goes on only when the chunk before has arrived here: a proxy that collects would wait for ever."""
    with client.stream("POST", COMPLETIONS, json={**one_chunk_a_round(), "stream": True}) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in reply.headers
        lines = (line for line in reply.iter_lines() if line.startswith("data: "))
        engine = asked_one(replicas).engine
        for count in range(1, TOKENS + 1):
            engine.allow(1)
            assert '"text":"' in next(lines).replace(" ", "")
            assert engine.rounds == count
        assert list(lines)[-1] == "data: [DONE]"


def test_keep_alives_arrive_before_the_first_token(client: httpx.Client, replicas: list[Replica]) -> None:
    with client.stream("POST", CHAT, json={"messages": HELLO, "stream": True}) as reply:
        lines = reply.iter_lines()
        assert [next(lines) for _ in range(3)] == [": keep-alive"] * 3
        engine = asked_one(replicas).engine
        assert engine.rounds == 0
        engine.allow()
        assert list(lines)[-2] == "data: [DONE]"


def test_errors_pass_as_they_are(client: httpx.Client, replicas: list[Replica]) -> None:
    check_error(client.post(CHAT, json={"messages": HELLO, "max_tokens": 0}), 400, "max_tokens")
    check_error(client.post(CHAT, json={"messages": HELLO}, headers={"Authorization": "Bearer x"}), 401)
    check_error(client.get("/nowhere"), 404)
    assert client.get("/ready").json()["ready"] is True


def test_a_full_queue(client: httpx.Client, replicas: list[Replica]) -> None:
    """429 is the answer of the conversation's replica; the other would not know the conversation."""
    threads = []
    for number in range(2):  # one runs, one waits
        threads.append(threading.Thread(target=client.post, args=(CHAT,), kwargs={"json": {"messages": HELLO}}))
        threads[-1].start()
        wait_until(lambda number=number: sum(replica.asked for replica in replicas) == number + 1)  # type: ignore[misc]
    refused = client.post(CHAT, json={"messages": HELLO, "stream": True})
    check_error(refused, 429)
    assert int(refused.headers["retry-after"]) >= 1
    asked_one(replicas).engine.allow()
    for thread in threads:
        thread.join(30.0)


def test_a_failure_inside_a_stream(client: httpx.Client, replicas: list[Replica]) -> None:
    for replica in replicas:
        replica.engine.fail_at_step = 3
        replica.engine.allow()
    reply = client.post(CHAT, json={"messages": HELLO, "stream": True})
    assert reply.status_code == 200
    assert events(reply.text)[-1]["error"]["code"] == "internal_error"


def test_a_client_that_leaves_frees_its_slot(client: httpx.Client, replicas: list[Replica]) -> None:
    with client.stream("POST", CHAT, json={"messages": HELLO, "stream": True}):
        engine = asked_one(replicas).engine
        wait_until(lambda: engine.status().running == 1)
    wait_until(lambda: engine.status().running == 0)
    assert engine.rounds == 0


def test_the_session_header_picks_the_replica(client: httpx.Client, replicas: list[Replica]) -> None:
    for replica in replicas:
        replica.engine.allow()
    homes: dict[int, int] = {}
    for turn in range(2):
        for number in range(16):
            before = [replica.asked for replica in replicas]
            body = {"messages": HELLO, "max_tokens": 1, "stream": bool(turn)}
            assert client.post(CHAT, json=body, headers={"X-Session-Id": f"session-{number}"}).status_code == 200
            (home,) = [index for index in range(2) if replicas[index].asked > before[index]]
            assert homes.setdefault(number, home) == home, "a conversation stays where it began"
    assert set(homes.values()) == {0, 1}, "and conversations are spread"
    before = [replica.asked for replica in replicas]
    del client.headers["X-Session-Id"]
    for _ in range(24):
        assert client.post(CHAT, json={"messages": HELLO, "max_tokens": 1}).status_code == 200
    assert all(replicas[index].asked > before[index] for index in range(2)), "requests without a session are spread"


def test_a_draining_replica_is_passed_over(client: httpx.Client, replicas: list[Replica]) -> None:
    for replica in replicas:
        replica.engine.allow()
    assert client.post(CHAT, json={"messages": HELLO}).status_code == 200
    home = asked_one(replicas)
    home.service.drain()
    assert client.post(CHAT, json={"messages": HELLO, "stream": True}).status_code == 200
    assert [replica.asked for replica in replicas] == [1, 1]
    for replica in replicas:
        replica.service.drain()
    reply = client.post(CHAT, json={"messages": HELLO})
    check_error(reply, 503)
    assert int(reply.headers["retry-after"]) >= 1


def test_a_request_that_may_have_ended_its_replica_is_not_sent_to_the_next(tmp_path: Path) -> None:
    """Both read a request and close the connection, as a process that dies of it does."""
    heard: list[bytes] = []

    def die(connection: socket.socket) -> None:
        if data := connection.recv(1 << 16):
            heard.append(data)

    with ExitStack() as opened:
        ports = [opened.enter_context(closing(TcpServer(die))).port for _ in range(2)]
        url = opened.enter_context(nginx_before([f"127.0.0.1:{port}" for port in ports], tmp_path))
        reply = httpx.post(url + CHAT, json={"messages": HELLO}, timeout=30.0)
    check_error(reply, 503, code="unavailable")
    assert sum(data.startswith(b"POST ") for data in heard) == 1


def test_a_replica_that_cannot_be_reached_is_passed_over(replicas: list[Replica], tmp_path: Path) -> None:
    there = replicas[0]
    there.engine.allow()
    with nginx_before([f"127.0.0.1:{free_port()}", there.url.removeprefix("http://")], tmp_path) as url:
        for _ in range(8):
            reply = httpx.post(url + CHAT, json={"messages": HELLO}, headers={"Authorization": "Bearer key"}, timeout=30.0)
            assert reply.status_code == 200
    assert there.asked == 8


def test_what_nginx_itself_refuses_has_the_form_of_our_errors(client: httpx.Client) -> None:
    reply = client.post(CHAT, content=b" " * (2 * 1024 * 1024 + 1), headers={"Content-Type": "application/json"})
    check_error(reply, 413, code="body_too_large")
    assert reply.headers["content-type"] == "application/json"
    for path in ("/metrics", "/admin/ocm"):
        assert client.get(path).status_code == 404


def test_no_replica_at_all(tmp_path: Path) -> None:
    with nginx_before([f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"], tmp_path) as url:
        reply = httpx.post(url + CHAT, json={"messages": HELLO}, timeout=30.0)
        check_error(reply, 503, code="unavailable")
        assert int(reply.headers["retry-after"]) >= 1


def test_openai_python(proxy: str, replicas: list[Replica]) -> None:
    for replica in replicas:
        replica.engine.allow()
    with openai.OpenAI(base_url=f"{proxy}/v1", api_key="key", max_retries=0, default_headers={"X-Session-Id": "s"}) as api:
        whole = api.chat.completions.create(model="synthetic", messages=MESSAGES, temperature=0)
        stream = api.chat.completions.create(model="synthetic", messages=MESSAGES, temperature=0, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole.choices[0].message.content
        with pytest.raises(openai.BadRequestError) as error:
            api.chat.completions.create(model="synthetic", messages=MESSAGES, temperature=9)
        assert error.value.param == "temperature"
        for replica in replicas:
            replica.engine.fail_at_step = replica.engine.rounds + 3
        with pytest.raises(openai.APIError):
            list(api.chat.completions.create(model="synthetic", messages=MESSAGES, stream=True))
    assert sorted(replica.asked > 0 for replica in replicas) == [False, True]
