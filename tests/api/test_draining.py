"""The time to drain: what ends within it is whole, and what does not ends with an error at once, whatever the worker does."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest

from app.api.generations import Generations
from app.api.service import Service
from app.engine.errors import EngineClosed
from app.main import create_app
from app.metrics import Metrics
from tests.api.support import CHAT, HELLO, check_error, events, new_settings, serving
from tests.synthetic import SyntheticEngine
from tests.waiting import wait_until


@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_outlasts_the_grace_holds_up_no_reply(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SyntheticEngine(manual=True)
    close, go = engine.close, threading.Event()
    monkeypatch.setattr(engine, "close", lambda grace=0.0: (go.wait(30.0), close()))  # a worker inside a long step
    app = create_app(new_settings(), lambda: engine)
    service: Service = app.state.service
    with serving(app) as url:
        wait_until(lambda: service.status() is not None)
        replies: list[httpx.Response] = []
        body = {"messages": HELLO, "stream": stream, "max_tokens": 5}
        asking = threading.Thread(target=lambda: replies.append(httpx.post(url + CHAT, json=body, timeout=30.0)))
        asking.start()
        wait_until(lambda: engine.status().running == 1)
        stopping = threading.Thread(target=service.stop, args=(0.05,))
        stopping.start()
        asking.join(30.0)  # httpx raises where the body has no proper end
        assert stopping.is_alive()
        if stream:
            assert events(replies[0].text)[-1]["error"]["code"] == "stopping"
        else:
            check_error(replies[0], 503, code="stopping")
        go.set()
        stopping.join(30.0)


def test_what_comes_after_the_grace_fails_at_once(engine: SyntheticEngine) -> None:
    service = Service(new_settings(), lambda: engine, Metrics(), lambda error: None)
    service.start()
    wait_until(lambda: service.status() is not None)
    service.stop(0.0)

    async def late() -> None:
        generations = Generations(service.metrics, timeout=10.0)
        service.opened(generations)
        await generations.next()

    with pytest.raises(EngineClosed):
        asyncio.run(late())


def test_what_ends_within_the_grace_is_whole() -> None:
    engine = SyntheticEngine(manual=True)
    app = create_app(new_settings(), lambda: engine)
    service: Service = app.state.service
    with serving(app) as url:
        wait_until(lambda: service.status() is not None)
        with httpx.stream("POST", url + CHAT, json={"messages": HELLO, "stream": True, "max_tokens": 5}, timeout=30.0) as reply:
            stopping = threading.Thread(target=service.stop, args=(60.0,))
            stopping.start()
            wait_until(lambda: service.state == "stopping")
            engine.allow()
            assert events("".join(reply.iter_text()))[-1] == "[DONE]"
        stopping.join(30.0)
