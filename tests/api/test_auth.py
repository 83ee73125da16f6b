"""Bearer keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import app.main
from app.api.auth import KeyRing
from tests.api.support import CHAT, COMPLETIONS, HELLO, check_error, client_of
from tests.synthetic import SyntheticEngine
from tests.waiting import wait_until


@pytest.fixture
def keyed(engine: SyntheticEngine) -> Iterator[TestClient]:
    with client_of(lambda: engine, api_keys="first, second,schlüssel") as client:
        yield client


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer firs", "Basic first", "first"])
def test_wrong_keys(keyed: TestClient, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    for method, path in (("POST", CHAT), ("POST", COMPLETIONS), ("GET", "/v1/models"), ("POST", "/tokenize"), ("GET", "/nope")):
        reply = keyed.request(method, path, headers=headers)
        error = check_error(reply, 401, code="invalid_api_key")
        assert reply.headers["www-authenticate"].startswith("Bearer")
        assert "first" not in error["message"]


@pytest.mark.parametrize("header", [b"Bearer first", b"bearer second", b"Bearer  first ", "Bearer schlüssel".encode()])
def test_right_keys(keyed: TestClient, header: bytes) -> None:
    assert keyed.post(CHAT, json={"messages": HELLO}, headers={b"Authorization": header}).status_code == 200


def test_open_routes(keyed: TestClient) -> None:
    for path in ("/health", "/ready", "/metrics", "/docs", "/openapi.json", "/"):
        assert keyed.get(path).status_code == 200, path


def test_a_tenant_is_a_digest_of_the_key(keyed: TestClient, engine: SyntheticEngine) -> None:
    for key in ("first", "second", "first"):
        keyed.post(CHAT, json={"messages": HELLO}, headers={"Authorization": f"Bearer {key}"})
    first, second, again = (request.tenant for request in engine.requests)
    assert first == again != second
    assert len(first) == 16
    assert "first" not in first


def test_without_keys_everybody_is_one_tenant(client: TestClient, engine: SyntheticEngine) -> None:
    client.post(CHAT, json={"messages": HELLO}, headers={"Authorization": "Bearer anything"})
    assert engine.requests[-1].tenant == ""


# -- what needs no key -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "opened"),
    [
        ("health,ready", {"/health", "/ready"}),
        ("metrics", {"/metrics"}),
        ("docs,page", {"/docs", "/openapi.json", "/"}),
        ("none", set()),
    ],
)
def test_open_routes_are_a_setting(engine: SyntheticEngine, setting: str, opened: set[str]) -> None:
    with client_of(lambda: engine, api_keys="key", open_routes=setting) as client:
        for path in ("/health", "/ready", "/metrics", "/docs", "/openapi.json", "/"):
            reply = client.get(path)
            assert reply.status_code == 200 if path in opened else check_error(reply, 401)
            assert client.get(path, headers={"Authorization": "Bearer key"}).status_code == 200


def test_without_keys_all_routes_are_open(engine: SyntheticEngine) -> None:
    with client_of(lambda: engine, open_routes="none") as client:
        assert client.get("/metrics").status_code == 200


# -- keys in a file --------------------------------------------------------------------------------------------------------


def may_ask(client: TestClient, key: str) -> bool:
    return client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200


def test_keys_in_a_file_are_read_again_when_it_changes(
    engine: SyntheticEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.main, "KEYS_EVERY", 0.01)
    file = tmp_path / "keys"
    file.write_text("# ours\n\n  first \nwith # inside\n")
    with client_of(lambda: engine, api_keys="given", api_keys_file=file) as client:
        assert all(may_ask(client, key) for key in ("given", "first", "with # inside"))
        assert not any(may_ask(client, key) for key in ("", "# ours", "second"))
        replacement = tmp_path / "new"
        replacement.write_text("second\n")
        os.replace(replacement, file)  # as secrets are rotated
        wait_until(lambda: may_ask(client, "second"))
        assert may_ask(client, "given") and not may_ask(client, "first")


@pytest.mark.parametrize("content", [None, b"", b"# nothing\n", b"\xff\xfe"])
def test_a_file_that_cannot_be_used_leaves_the_keys_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    file = tmp_path / "keys"
    file.write_text("first\n")
    ring = KeyRing([], file)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    for _ in range(3):
        ring.refresh()
    assert ring.tenant(b"Bearer first") and ring.tenant(None) is None
    assert len(caplog.records) == 1 and "stay as they are" in caplog.text
    file.write_text("second\n")
    ring.refresh()
    assert ring.tenant(b"Bearer second") and not ring.tenant(b"Bearer first")
