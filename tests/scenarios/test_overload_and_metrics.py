"""Twenty requests at five places, and metrics that fail: those that can be served are, whatever happens around them."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.api.support import CHAT, COMPLETIONS, HELLO, check_error, samples, served
from tests.synthetic import SyntheticEngine
from tests.waiting import wait_until

JSON_TYPE = "Content-Type: application/json\r\n"


@pytest.mark.parametrize("stream", [False, True])
def test_fifteen_of_twenty_are_turned_away_at_once(stream: bool) -> None:
    engine = SyntheticEngine(manual=True, max_running=1, max_queued=4)
    replies: list[httpx.Response] = []
    with served(engine) as url:

        def ask() -> None:
            replies.append(httpx.post(url + CHAT, json={"messages": HELLO, "stream": stream}, timeout=60.0))

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(replies) == 15)  # while nothing has run yet
        assert engine.rounds == 0
        for reply in replies:
            check_error(reply, 429, code="queue_full")
            assert int(reply.headers["retry-after"]) >= 1
        engine.allow()
        for thread in threads:
            thread.join(60.0)
        assert Counter(reply.status_code for reply in replies) == {200: 5, 429: 15}
        page = samples(httpx.Client(base_url=url))
        assert page["racer_queue_refusals_total"] == 15
        assert httpx.post(url + CHAT, json={"messages": HELLO}).status_code == 200


class Spoilt(SyntheticEngine):
    """Reports negative counts every third time, and raises from its observer's calls every seventh."""

    calls = 0

    def _observe(self, what: str, *arguments: Any) -> None:
        self.calls += 1
        if what == "prefilled" and self.calls % 3 == 0:
            arguments = (-1,)
        super()._observe(what, *arguments)


def test_metrics_that_fail_take_nobody_down(caplog: pytest.LogCaptureFixture) -> None:
    engine = Spoilt(max_running=8, max_queued=64)
    body = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 60, "ignore_eos": True}).encode()
    previous: dict[str, float] = {}
    with served(engine) as url, httpx.Client(base_url=url) as client:
        port = int(url.rsplit(":", 1)[1])
        for number in range(500):
            if number % 5 == 0:
                with socket.create_connection(("127.0.0.1", port), 30.0) as raw:  # and leave
                    raw.sendall(
                        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{JSON_TYPE}Content-Length: {len(body)}\r\n\r\n".encode()
                        + body
                    )
            else:
                reply = client.post(COMPLETIONS, json={"prompt": f"a{number}", "max_tokens": 3})
                assert reply.status_code == 200, reply.text
            if number % 100 == 0:
                page = {name: value for name, value in samples(client).items() if name.endswith(("_total", "_count", "_sum"))}
                assert all(page[name] >= value for name, value in previous.items())
                previous = page
        wait_until(lambda: engine.status().running + engine.status().waiting == 0)
        assert client.post(CHAT, json={"messages": HELLO}).status_code == 200
    assert sum("metric update" in record.getMessage() for record in caplog.records) == 1
