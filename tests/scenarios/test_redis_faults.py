"""Redis killed, hanging, full, flushed, holding something else, and back: answers do not change, nobody waits, and what the
server counted is in the store once. The service is its own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.api.ocm_routes import NDJSON
from tests.csd.stores.support import Driven
from tests.scenarios.process import ADMIN, PROMPTS, ServiceProcess, service_process, streamed_text
from tests.servers import RedisServer
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def service(model: Path, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    redis.start()
    with service_process(model, tmp_path_factory.mktemp("serve"), allow_csd="1", store=redis.url) as service:
        wait_until(lambda: service.store()["state"] == "ok")
        yield service


@pytest.fixture(scope="module")
def oracle(service: ServiceProcess) -> dict[str, str]:
    return {prompt: service.plain(prompt) for prompt in PROMPTS}


@pytest.fixture
def keys(service: ServiceProcess) -> tuple[str, str, str]:
    pairs = f"racer:ocm:1:{{{service.fingerprint()}}}"
    return pairs, f"{pairs}:version", f"{pairs}:batches"


@pytest.fixture
def ledger(service: ServiceProcess, redis: RedisServer) -> Iterator[Ledger]:
    ledger = Ledger(service, redis)
    ledger.start_anew()
    yield ledger
    ledger.close()


class Ledger:
    """Compares what the server counted with what its store holds."""

    def __init__(self, service: ServiceProcess, redis: RedisServer) -> None:
        self._service = service
        self._table = Driven(redis.url, service.fingerprint())
        self.close = self._table.close

    def start_anew(self) -> None:
        """Everything has been sent: the balance of now is the one to keep."""
        wait_until(lambda: self._service.store()["state"] == "ok")
        previous = None
        while previous != (previous := self._balance()):
            reported = self._service.metric("store_acknowledged_increments_total")
            nudge(self._service)
            assert self._service.metric("store_acknowledged_increments_total") >= reported
        self._kept = previous

    def balanced(self) -> bool:
        """Whether the store took over all that was counted, each divergence once."""
        return self._service.store()["state"] == "ok" and self._balance() == self._kept

    def _balance(self) -> float:
        recorded = self._service.metric("ocm_recorded_total")
        return sum(self._table.counts().values()) - recorded


def nudge(service: ServiceProcess) -> None:
    """An exchange with the store now, as an operator's import of an empty table makes it."""
    header = service.client.get("/admin/ocm/export", headers=ADMIN).text.splitlines()[0]
    empty = header.rsplit('"entries"', 1)[0] + '"entries":0}\n'
    service.client.post("/admin/ocm/import", content=empty, headers={**ADMIN, "Content-Type": NDJSON})


def learn(service: ServiceProcess, oracle: dict[str, str]) -> None:
    """Answers that are plain's, with divergences counted on the way."""
    before = service.metric("ocm_recorded_total")
    for prompt, text in oracle.items():
        assert service.ask(prompt, speculative={"max_nodes": 8}) == text
    assert service.metric("ocm_recorded_total") > before


def test_redis_killed_under_five_streams(
    service: ServiceProcess, redis: RedisServer, oracle: dict[str, str], ledger: Ledger
) -> None:
    learn(service, oracle)
    texts: list[str] = []
    begun = threading.Barrier(6)

    def read(prompt: str) -> None:
        events = service.stream(prompt, 400)
        first = next(events)
        begun.wait(60.0)
        texts.append(streamed_text([first, *events]))

    expected = service.plain(PROMPTS[0], 400)
    threads = [threading.Thread(target=read, args=(PROMPTS[0],)) for _ in range(5)]
    for thread in threads:
        thread.start()
    begun.wait(60.0)
    redis.kill9()
    for thread in threads:
        thread.join(60.0)
    assert texts == [expected] * 5
    wait_until(lambda: service.store()["state"] == "degraded")
    assert service.metric("store_degraded") == 1 and service.metric("store_errors_total") > 0
    learn(service, oracle)
    assert service.client.get("/ready").status_code == service.client.get("/health").status_code == 200
    redis.start()
    wait_until(ledger.balanced, timeout=60.0)
    assert service.metric("store_degraded") == 0


def test_redis_hanging(service: ServiceProcess, redis: RedisServer, oracle: dict[str, str], ledger: Ledger) -> None:
    learn(service, oracle)
    redis.pause()
    try:
        learn(service, oracle)  # all of them are answered while the store hangs
        wait_until(lambda: service.store()["state"] == "degraded")
        learn(service, oracle)
        assert "does not answer" in service.store()["last_error"]
    finally:
        redis.resume()
    wait_until(ledger.balanced, timeout=60.0)


def test_idle_redis_connections_are_closed(
    service: ServiceProcess, redis: RedisServer, oracle: dict[str, str], ledger: Ledger
) -> None:
    errors = service.metric("store_errors_total")
    for _ in range(3):
        redis.command("CLIENT", "KILL", "TYPE", "normal")
        learn(service, oracle)
        nudge(service)
    wait_until(ledger.balanced)
    assert service.metric("store_errors_total") == errors


def test_redis_full(service: ServiceProcess, redis: RedisServer, oracle: dict[str, str], ledger: Ledger) -> None:
    errors = service.metric("store_errors_total")
    redis.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    redis.command("CONFIG", "SET", "maxmemory", "100kb")  # less than an empty server needs
    try:
        learn(service, oracle)
        wait_until(lambda: service.metric("store_errors_total") > errors + 1)
        assert "is full" in service.store()["last_error"]
        learn(service, oracle)
        assert service.log.count("is full") == 1
    finally:
        redis.command("CONFIG", "SET", "maxmemory", "0")
    wait_until(ledger.balanced, timeout=60.0)


def test_ten_thousand_pairs_are_bounded_and_every_key_expires(
    model: Path, redis: RedisServer, service: ServiceProcess, keys: tuple[str, str, str], tmp_path: Path
) -> None:
    """Under volatile-lru the server may drop the table: then it starts anew, and nothing fails."""
    header = service.client.get("/admin/ocm/export", headers=ADMIN).text.splitlines()[0].rsplit('"entries"', 1)[0]
    rows = "".join(f'{{"draft":{1 + row // 90},"target":{row % 90 + 1000},"count":1}}\n' for row in range(10_000))
    with service_process(model, tmp_path / "serve", allow_csd="1", store=redis.url, ocm_entries="1000") as other:
        table = f'{header}"entries":10000}}\n{rows}'
        reply = other.client.post("/admin/ocm/import", content=table, headers={**ADMIN, "Content-Type": NDJSON})
        assert reply.status_code == 200, reply.text
        assert other.store()["entries"] <= 1000
        assert int(redis.command("ZCARD", keys[0])[1:]) <= 2000
        for key in keys:
            assert 0 < int(redis.command("TTL", key)[1:]) <= 30 * 86_400
        redis.command("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
        redis.command("CONFIG", "SET", "maxmemory", "2mb")
        expected = other.plain(PROMPTS[0])
        assert other.ask(PROMPTS[0]) == expected
        nudge(other)
        assert other.client.get("/ready").status_code == 200
        redis.command("CONFIG", "SET", "maxmemory", "0")
        wait_until(lambda: other.store()["state"] == "ok")
    other_table = {key for key in service.table() if key[1] >= 1000}
    assert len(other_table) <= 2000
    redis.command("DEL", *keys)  # for the tests that follow
    nudge(service)


def test_redis_flushed(service: ServiceProcess, redis: RedisServer, oracle: dict[str, str], ledger: Ledger) -> None:
    learn(service, oracle)
    wait_until(ledger.balanced)
    redis.command("FLUSHALL")
    nudge(service)
    wait_until(lambda: not service.table())  # what the store lost is not kept beside it
    ledger.start_anew()
    learn(service, oracle)
    wait_until(ledger.balanced)
    assert service.table()


def test_redis_with_something_else_at_the_key_and_an_older_schema_beside_it(
    service: ServiceProcess, redis: RedisServer, oracle: dict[str, str], ledger: Ledger, keys: tuple[str, str, str]
) -> None:
    old = keys[0].replace(":1:", ":0:")
    redis.command("HSET", old, "1:2", "99")
    redis.command("DEL", *keys)
    redis.command("HSET", keys[0], "1:2", "99")
    learn(service, oracle)
    wait_until(lambda: service.store()["state"] == "degraded")
    assert "something else" in service.store()["last_error"]
    learn(service, oracle)
    redis.command("DEL", keys[0])
    nudge(service)
    wait_until(lambda: service.store()["state"] == "ok", timeout=60.0)
    learn(service, oracle)
    ledger.start_anew()
    learn(service, oracle)
    wait_until(ledger.balanced)
    assert redis.command("HGET", old, "1:2") == b"$2\r\n99\r\n"


def test_redis_restarted_with_other_options_and_another_address_family(
    service: ServiceProcess, redis: RedisServer, oracle: dict[str, str], ledger: Ledger
) -> None:
    """As in an upgrade in place: the process is another one, with other settings, and has the files of the first."""
    learn(service, oracle)
    redis.options |= {"io-threads": "2", "maxmemory-policy": "allkeys-lru", "protected-mode": "no"}
    redis.restart()
    learn(service, oracle)
    wait_until(ledger.balanced, timeout=60.0)


def test_two_replicas_learn_from_each_other(
    model: Path, service: ServiceProcess, redis: RedisServer, oracle: dict[str, str], tmp_path: Path, ledger: Ledger
) -> None:
    with service_process(model, tmp_path / "serve", allow_csd="1", store=redis.url) as second:
        learn(service, oracle)
        wait_until(ledger.balanced)
        wait_until(lambda: second.table() == service.table() != {})
        known = sum(service.table().values())
        learn(second, oracle)
        wait_until(lambda: second.table() == service.table() and sum(service.table().values()) > known)
        recorded = second.metric("ocm_recorded_total")
        assert sum(service.table().values()) == known + recorded
