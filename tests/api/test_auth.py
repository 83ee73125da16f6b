"""Bearer keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tests.api.support import CHAT, COMPLETIONS, HELLO, check_error, client_of
from tests.synthetic import SyntheticEngine


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
