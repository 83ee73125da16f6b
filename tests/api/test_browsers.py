"""HEAD, and pages of other origins."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from tests.api.support import CHAT, HELLO, check_error, client_of, served
from tests.synthetic import SyntheticEngine

PAGE = "https://chat.example.com"


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/metrics", "/v1/models", "/v1/models/synthetic", "/", "/docs", "/openapi.json"]
)
def test_head_is_get_without_its_body(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


def test_head_over_a_socket_and_on_one_connection() -> None:
    with served(SyntheticEngine()) as url, httpx.Client(base_url=url) as client:
        for _ in range(3):
            assert client.head("/health").status_code == 200
            assert client.get("/health").json()["status"] == "ok"
        assert client.head("/nope").status_code == 404
        assert client.head(CHAT).status_code == 405
        assert client.head("/v1/models/other").status_code == 404


def preflight(client: TestClient, origin: str = PAGE) -> Any:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    return client.options(CHAT, headers=asked)


def test_no_other_page_may_ask_by_default(client: TestClient) -> None:
    check_error(preflight(client), 405)
    assert "access-control-allow-origin" not in client.get("/health", headers={"Origin": PAGE}).headers


def test_listed_origins_may_ask() -> None:
    engine = SyntheticEngine()
    with client_of(lambda: engine, api_keys="key", cors_origins=f"{PAGE},http://localhost:3000") as client:
        allowed = preflight(client)
        assert allowed.status_code == 200 and allowed.headers["access-control-allow-origin"] == PAGE
        assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
        refused = preflight(client, "https://evil.example.com")
        assert refused.status_code == 400 and "access-control-allow-origin" not in refused.headers
        for key in ("key", "wrong"):  # refusals can be read too
            headers = {"Origin": PAGE, "Authorization": f"Bearer {key}"}
            for stream in (False, True):
                reply = client.post(CHAT, json={"messages": HELLO, "stream": stream}, headers=headers)
                assert reply.status_code == (200 if key == "key" else 401)
                assert reply.headers["access-control-allow-origin"] == PAGE


def test_any_origin() -> None:
    engine = SyntheticEngine()
    with client_of(lambda: engine, cors_origins="*") as client:
        assert client.get("/health", headers={"Origin": "https://x.example"}).headers["access-control-allow-origin"] == "*"
