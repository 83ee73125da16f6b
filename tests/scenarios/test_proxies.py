"""Streams through things that stand between: compression that is offered, and silence before the first token."""

from __future__ import annotations

import threading

import httpx
import openai
import pytest

from app.api.service import Service
from tests.api.support import CHAT, COMPLETIONS, HELLO, events, served
from tests.synthetic import SyntheticEngine


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_is_neither_compressed_nor_held_back(path: str) -> None:
    engine = SyntheticEngine(manual=True)
    body = {"messages": HELLO} if path == CHAT else {"prompt": "a"}
    offered = {"Accept-Encoding": "gzip, deflate, br"}
    with (
        served(engine) as url,
        httpx.stream("POST", url + path, json={**body, "stream": True}, headers=offered, timeout=60.0) as reply,
    ):
        assert engine.rounds == 0  # the headers are here before the first token
        assert reply.headers["content-type"].partition(";")[0] == "text/event-stream"
        assert reply.headers["x-accel-buffering"] == "no" and reply.headers["cache-control"] == "no-cache"
        assert "content-encoding" not in reply.headers and "content-length" not in reply.headers
        engine.allow(1)
        content = reply.iter_raw()
        first = next(content)  # and a token before the next is made
        assert engine.rounds == 1 and first.startswith(b"data: ")
        engine.allow()
        assert events((first + b"".join(content)).decode())[-1] == "[DONE]"


def test_openai_reads_over_keep_alives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "keep_alive_after", 0.01)
    engine = SyntheticEngine(manual=True)
    with served(engine) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as api:
        raw = httpx.Client(base_url=url)
        with raw.stream("POST", CHAT, json={"messages": HELLO, "stream": True}) as reply:
            lines = reply.iter_lines()
            assert all(next(lines).startswith(":") for _ in range(3))
        messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
        stream = api.chat.completions.create(model="synthetic", messages=messages, stream=True)
        threading.Timer(0.2, engine.allow).start()  # some keep-alives later
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        whole = api.chat.completions.create(model="synthetic", messages=messages)
        assert text and whole.choices[0].message.content
