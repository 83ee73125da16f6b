"""SIGTERM to a real process: red readiness, streams that may end, errors for those that may not, and nothing learnt is lost."""

from __future__ import annotations

import json
from pathlib import Path

from tests.api.support import COMPLETIONS, check_error
from tests.csd.stores.support import Driven
from tests.scenarios.process import PROMPTS, ServiceProcess, service_process, streamed_text
from tests.servers import RedisServer
from tests.waiting import wait_until


def stored(url: str, fingerprint: str) -> float:
    table = Driven(url, fingerprint)
    try:
        return sum(table.counts().values())
    finally:
        table.close()


def learn_and_stop(service: ServiceProcess) -> float:
    """Divergences it has counted; it is told to stop right after the last."""
    for prompt in PROMPTS:
        service.ask(prompt)
    recorded = service.metric("ocm_recorded_total")
    service.terminate()
    assert service.wait() == 0, service.log
    assert recorded > 0 and "Traceback" not in service.log
    return recorded


def test_increments_are_in_sqlite_after_sigterm(model: Path, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'ocm.sqlite3'}"
    with service_process(model, tmp_path / "serve", allow_csd="1", store=url) as service:
        fingerprint = service.fingerprint()
        recorded = learn_and_stop(service)
    assert stored(url, fingerprint) == recorded


def test_redis_absent_at_start_then_there_then_flushed_at_sigterm(model: Path, redis: RedisServer, tmp_path: Path) -> None:
    with service_process(model, tmp_path / "serve", allow_csd="1", store=redis.url) as service:
        assert service.ask(PROMPTS[0]) == service.plain(PROMPTS[0])
        assert service.store()["state"] == "degraded" and service.metric("store_degraded") == 1
        assert "cannot be reached" in service.store()["last_error"]
        redis.start()
        wait_until(lambda: service.store()["state"] == "ok", timeout=60.0)
        assert service.metric("store_degraded") == 0
        fingerprint = service.fingerprint()
        recorded = learn_and_stop(service)
    assert stored(redis.url, fingerprint) == recorded


def test_a_running_stream_ends_within_its_grace(model: Path, tmp_path: Path) -> None:
    with service_process(model, tmp_path / "serve", shutdown_grace="120") as service:
        expected = service.plain(PROMPTS[0], 2000)
        events = service.stream(PROMPTS[0], 2000)
        first = next(events)
        service.terminate()
        wait_until(lambda: service.client.get("/ready").status_code == 503)
        assert service.client.get("/health").status_code == 200
        reply = service.client.post(COMPLETIONS, json=service.body("a"))
        check_error(reply, 503, code="stopping")
        assert int(reply.headers["retry-after"]) >= 1
        assert streamed_text([first, *events]) == expected
        assert service.wait() == 0, service.log


def test_a_stream_that_outlasts_its_grace_ends_with_an_error(model: Path, tmp_path: Path) -> None:
    with service_process(model, tmp_path / "serve", shutdown_grace="0") as service:
        events = service.stream(PROMPTS[0], 4000)
        next(events)
        service.terminate()
        *_, last = events
        assert json.loads(last)["error"]["code"] == "stopping"
        assert service.wait() == 0, service.log
        assert "Traceback" not in service.log
