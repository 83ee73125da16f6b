"""Loading, ready, stopping, failed: what each route says, and how a process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from app.engine.errors import EngineFailed, ModelLoadError
from app.engine.interface import EngineInterface
from tests.api.support import CHAT, COMPLETIONS, HELLO, check_error, client_of, events, served
from tests.synthetic import SyntheticEngine
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


def check_state(client: TestClient, health: int, ready: int, state: str) -> dict[str, Any]:
    live, readiness = client.get("/health"), client.get("/ready")
    assert (live.status_code, readiness.status_code) == (health, ready), (live.text, readiness.text)
    assert live.json()["state"] == readiness.json()["state"] == state
    for reply in (live, readiness):
        assert reply.status_code == 200 or {"message", "type", "param", "code"} == set(reply.json()["error"])
    if ready != 200:
        assert int(readiness.headers["retry-after"]) >= 1
    return dict(readiness.json())


def check_unavailable(client: TestClient) -> None:
    for method, path, body in (
        ("POST", CHAT, {"messages": HELLO}),
        ("POST", CHAT, {"messages": HELLO, "stream": True}),
        ("POST", COMPLETIONS, {"prompt": "a"}),
        ("POST", "/tokenize", {"prompt": "a"}),
        ("GET", "/v1/models", None),
        ("GET", "/v1/models/synthetic", None),
    ):
        reply = client.request(method, path, json=body)
        check_error(reply, 503)
        assert int(reply.headers["retry-after"]) >= 1


def test_while_loading() -> None:
    go = threading.Event()

    def load() -> EngineInterface:
        go.wait(30.0)
        return SyntheticEngine()

    with client_of(load, wait=False) as client:
        check_state(client, 200, 503, "loading")
        check_unavailable(client)
        assert client.get("/metrics").status_code == client.get("/").status_code == 200
        go.set()
        wait_until(lambda: client.get("/ready").status_code == 200)
        body = check_state(client, 200, 200, "ready")
        assert (body["ready"], body["model"], body["store"]) == (True, "synthetic", None)
        assert client.post(CHAT, json={"messages": HELLO}).status_code == 200


def test_loaded_but_no_token_yet(client: TestClient, engine: SyntheticEngine) -> None:
    engine.ready = False
    check_state(client, 200, 503, "loading")
    check_unavailable(client)
    engine.ready = True
    check_state(client, 200, 200, "ready")


def test_a_failed_load() -> None:
    error = ModelLoadError("There is no model at /nowhere.")

    def load() -> EngineInterface:
        raise error

    with client_of(load, wait=False) as client:
        failures: list[Exception] = client.app.state.failures  # type: ignore[attr-defined]
        wait_until(lambda: failures == [error])
        check_state(client, 503, 503, "failed")
        check_unavailable(client)


def test_a_stuck_or_dead_worker_turns_health_red(client: TestClient, engine: SyntheticEngine) -> None:
    engine.stuck = True
    check_state(client, 503, 503, "failed")
    engine.stuck = False
    check_state(client, 200, 200, "ready")
    engine.close()
    check_state(client, 503, 503, "failed")
    failures: list[Exception] = client.app.state.failures  # type: ignore[attr-defined]
    wait_until(lambda: [type(failure) for failure in failures] == [EngineFailed])
    check_state(client, 503, 503, "failed")


def test_draining(client: TestClient) -> None:
    client.app.state.service.drain()  # type: ignore[attr-defined]
    check_state(client, 200, 503, "stopping")
    check_unavailable(client)


def test_an_engine_that_comes_after_the_end_is_closed() -> None:
    go = threading.Event()
    engine = SyntheticEngine()

    def load() -> EngineInterface:
        go.wait(30.0)
        return engine

    with client_of(load, wait=False):
        pass
    go.set()
    wait_until(lambda: not engine.status().alive)


@pytest.mark.parametrize("stream", [False, True])
def test_what_runs_at_the_end_gets_an_error(stream: bool) -> None:
    engine = SyntheticEngine(manual=True)
    replies: list[httpx.Response] = []
    with served(engine) as url:
        body = {"messages": HELLO, "stream": stream}
        thread = threading.Thread(target=lambda: replies.append(httpx.post(url + CHAT, json=body, timeout=30.0)))
        thread.start()
        wait_until(lambda: engine.status().running == 1)
        engine.close()
        thread.join(30.0)
    if stream:
        assert events(replies[0].text)[-1]["error"]["code"] == "stopping"
    else:
        check_error(replies[0], 503, code="stopping")


def test_a_generation_the_server_drops_is_no_success(
    client: TestClient, engine: SyntheticEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.manual = True
    submit = engine.submit

    def submit_and_drop(*args: Any) -> Any:
        handle = submit(*args)
        handle.cancel()
        return handle

    monkeypatch.setattr(engine, "submit", submit_and_drop)
    check_error(client.post(CHAT, json={"messages": HELLO}), 503)
    assert "error" in events(client.post(CHAT, json={"messages": HELLO, "stream": True}).text)[-1]


def test_the_engine_closes_with_the_app(engine: SyntheticEngine) -> None:
    with client_of(lambda: engine) as client:
        assert client.get("/ready").status_code == 200
        assert engine.observer is client.app.state.service.metrics  # type: ignore[attr-defined]
    assert not engine.status().alive


def test_the_engine_is_closed_once(engine: SyntheticEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is stuck would be waited for twice."""
    closed: list[float] = []
    close = engine.close

    def count(grace: float = 0.0) -> None:
        closed.append(grace)
        close(grace)

    monkeypatch.setattr(engine, "close", count)
    with client_of(lambda: engine) as client:
        client.app.state.service.stop(0.5)  # type: ignore[attr-defined]
    assert closed == [0.5]


# -- processes -----------------------------------------------------------------------------------------------------------

PROCESS = """
import logging, sys
from app.engine.errors import EngineFailed, ModelLoadError
from app.server import run
from app.settings import read_settings
from tests.synthetic import SyntheticEngine

def load():
    if "fail" in sys.argv:
        raise ModelLoadError("There is no model at /nowhere.")
    if "hang" in sys.argv:
        sys.stderr.write("hanging\\n")
        sys.stderr.flush()
        import time
        time.sleep(600)
    engine = SyntheticEngine(name="synthetic", manual="manual" in sys.argv)
    if "die" in sys.argv:
        def die(*_):
            engine.close()
            raise EngineFailed
        engine.submit = die
    return engine

logging.basicConfig(level="INFO", format="%(message)s")
sys.exit(run(read_settings({"target": "synthetic", "port": "0", "shutdown_grace": "60"}), load))
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROCESS, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"no line with {text!r}")


def url_of(process: subprocess.Popen[str]) -> str:
    return read_until(process, "serving synthetic at http://127.0.0.1:").split(" at ")[1].split(": device")[0]


@pytest.mark.slow
def test_a_failed_load_ends_the_process_with_one_line() -> None:
    process = start("fail")
    _, errors = process.communicate(timeout=60.0)
    assert process.returncode == 1
    assert errors.splitlines()[-1] == "racer-csd: error: There is no model at /nowhere."
    assert "Traceback" not in errors


@pytest.mark.slow
def test_an_engine_that_dies_ends_the_process_with_one_line() -> None:
    process = start("die")
    check_error(httpx.post(url_of(process) + CHAT, json={"messages": HELLO}, timeout=60.0), 503, code="failed")
    _, errors = process.communicate(timeout=60.0)
    assert process.returncode == 1
    assert errors.splitlines()[-1] == "racer-csd: error: The engine has failed; the server's log says why."


@pytest.mark.slow
def test_sigterm_ends_the_process_cleanly() -> None:
    process = start()
    url = url_of(process)
    assert httpx.post(url + CHAT, json={"messages": HELLO}).status_code == 200
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60.0)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert [line for line in errors.splitlines() if line.startswith("stop")] == [
        "stopping: 0 running, up to 60 seconds",
        "stopped",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_process_that_still_loads_at_once(sent: signal.Signals, code: int) -> None:
    process = start("hang")
    read_until(process, "hanging")
    process.send_signal(sent)
    _, errors = process.communicate(timeout=60.0)
    assert process.returncode == code
    assert errors.splitlines()[-1] == "stopped while synthetic was being loaded"


@pytest.mark.slow
def test_while_work_runs_on_a_load_balancer_sees_the_end_come() -> None:
    process = start("manual")
    url = url_of(process)
    with httpx.stream("POST", url + CHAT, json={"messages": HELLO, "stream": True}, timeout=60.0) as reply:
        assert reply.status_code == 200
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(url + "/ready").status_code == 503)  # each call is a new connection
        assert httpx.get(url + "/health").status_code == 200
        check_error(httpx.post(url + CHAT, json={"messages": HELLO}), 503, code="stopping")
        assert process.poll() is None
    _, errors = process.communicate(timeout=30.0)  # the client left, so nothing runs, long before the grace is over
    assert process.returncode == 0, errors


@pytest.mark.slow
@pytest.mark.parametrize(("second", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_a_second_signal_ends_at_once(second: signal.Signals, code: int) -> None:
    process = start("manual")
    url = url_of(process)
    with httpx.stream("POST", url + CHAT, json={"messages": HELLO, "stream": True}, timeout=60.0):
        wait_until(lambda: "racer_num_requests_running 1.0" in httpx.get(url + "/metrics").text)  # the reply begins before
        process.send_signal(signal.SIGINT)
        wait_until(lambda: httpx.get(url + "/ready").status_code == 503)
        process.send_signal(second)
        _, errors = process.communicate(timeout=30.0)
    assert process.returncode == code
    assert "stopping: 1 running, up to 60 seconds" in errors
    assert errors.splitlines()[-1] == "a second signal: stopped at once"
    assert "terminate" not in errors
    assert "Traceback" not in errors
