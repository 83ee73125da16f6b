"""Ready means that a token was made, and a failed load ends the process."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from app.engine.engine import Engine, EngineConfig
from app.engine.interface import EngineInterface
from tests.api.support import COMPLETIONS, check_error, client_of
from tests.scenarios.process import ServiceProcess
from tests.tiny import loaded
from tests.waiting import wait_until


def test_readiness_is_red_until_a_token_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made, prove = threading.Event(), Engine._prove

    def prove_later(engine: Engine) -> None:
        made.wait(60.0)
        prove(engine)

    monkeypatch.setattr(Engine, "_prove", prove_later)

    def load() -> EngineInterface:
        return Engine(loaded(), EngineConfig(max_nodes=8, prior_rows=0))

    with client_of(load, wait=False) as client:
        for _ in range(5):
            assert client.get("/health").status_code == 200
            assert client.get("/ready").status_code == 503
            for reply in (client.get("/v1/models"), client.post(COMPLETIONS, json={"prompt": "a"})):
                check_error(reply, 503, code="loading")
                assert int(reply.headers["retry-after"]) >= 1
        made.set()
        wait_until(lambda: client.get("/ready").status_code == 200)
        assert client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize("setting", ["target", "draft"])
def test_a_model_that_is_not_there_ends_the_process(model: Path, tmp_path: Path, setting: str) -> None:
    service = ServiceProcess(model, tmp_path, **{setting: str(tmp_path / "nowhere")})
    assert service.wait() == 1
    assert service.log.splitlines()[-1].startswith("racer-csd: error: ") and "nowhere" in service.log.splitlines()[-1]
    assert "Traceback" not in service.log
