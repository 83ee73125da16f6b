"""What systemd is told, and when an engine is given up."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.api.routes import PATHS
from app.api.service import Service
from app.engine.errors import EngineFailed
from app.metrics import Metrics
from app.watchdog import Notifier, Watchdog
from tests.api.support import new_settings
from tests.synthetic import SyntheticEngine
from tests.waiting import wait_until


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    name = str(tmp_path / "notify") if request.param == "path" else f"\0racer-{os.getpid()}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name)
        listener.setblocking(False)
        yield listener


def environment(listener: socket.socket, **more: str) -> dict[str, str]:
    name = listener.getsockname()
    return {"NOTIFY_SOCKET": "@" + name[1:].decode() if isinstance(name, bytes) else name, **more}


def heard(listener: socket.socket) -> list[str]:
    lines: list[str] = []
    while True:
        try:
            lines += listener.recv(4096).decode().split("\n")
        except BlockingIOError:
            return lines


def serving(engine: SyntheticEngine) -> tuple[Service, list[Exception]]:
    failures: list[Exception] = []
    service = Service(new_settings(stuck_after=10.0), lambda: engine, Metrics(PATHS), failures.append)
    service.start()
    wait_until(lambda: service.state == "ready")
    return service, failures


def test_systemd_hears_each_state_once_and_that_the_service_lives(listener: socket.socket) -> None:
    engine = SyntheticEngine()
    service, failures = serving(engine)
    watchdog = Watchdog(service, Notifier(environment(listener)))
    watchdog.check()
    assert heard(listener) == ["WATCHDOG=1", "READY=1", "STATUS=ready"]
    watchdog.check()
    assert heard(listener) == ["WATCHDOG=1"]
    service.drain()
    watchdog.check()
    assert heard(listener) == ["WATCHDOG=1", "STOPPING=1", "STATUS=stopping"]
    engine.close()
    watchdog.check()
    assert heard(listener) == ["WATCHDOG=1"]
    assert failures == []


def test_a_failed_engine_gives_no_sign_and_is_given_up_once(listener: socket.socket) -> None:
    engine = SyntheticEngine()
    service, failures = serving(engine)
    watchdog = Watchdog(service, Notifier(environment(listener)))
    engine.close()
    for _ in range(2):
        watchdog.check()
    assert heard(listener) == ["STATUS=failed"]
    assert [type(failure) for failure in failures] == [EngineFailed]
    service.stop(0.0)
    assert service.state == "failed"


def test_a_stuck_engine_gives_no_sign_and_is_given_up_after_twice_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SyntheticEngine()
    service, failures = serving(engine)
    status = engine.status
    ages = [9.9, 10.0, 19.9, 5.0, 20.0]
    monkeypatch.setattr(engine, "status", lambda: replace(status(), heartbeat_age=ages[0]))
    seen = []
    while ages:
        service.give_up_if_failed()
        seen.append((service.state, len(failures)))
        ages.pop(0) if len(ages) > 1 else ages.clear()
    assert seen == [("ready", 0), ("failed", 0), ("failed", 0), ("ready", 0), ("failed", 1)]
    engine.close()


def test_the_period_is_systemds(listener: socket.socket) -> None:
    engine = SyntheticEngine()
    service, _ = serving(engine)

    def every(**more: str) -> float:
        return Watchdog(service, Notifier(environment(listener, **more))).every

    assert every() == every(WATCHDOG_USEC="30000000") == 1.0
    assert every(WATCHDOG_USEC="600000") == pytest.approx(0.2)
    assert every(WATCHDOG_USEC="600000", WATCHDOG_PID=str(os.getpid())) == pytest.approx(0.2)
    assert every(WATCHDOG_USEC="600000", WATCHDOG_PID="1") == 1.0
    engine.close()


def test_a_socket_that_is_gone_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    for _ in range(3):
        notifier.tell("READY=1")
    assert caplog.text.count("cannot be reported to systemd") == 1
    Notifier({}).tell("READY=1")
