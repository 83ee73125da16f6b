"""The files of the API reference over HTTP: caching, the security policy, and who may have them."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from app.api.pages import docs_files
from tests.api.support import check_error, client_of
from tests.synthetic import SyntheticEngine

PATHS = ["/docs", *(f"/docs/{name}" for name in docs_files())]


@pytest.mark.parametrize("path", PATHS)
def test_its_files_have_a_tag_and_a_closed_policy(client: TestClient, path: str) -> None:
    reply = client.get(path)
    assert reply.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
    assert policy.pop("img-src") == "'self' data:"
    assert set(policy.values()) == {"'none'", "'self'"}
    again = client.get(path, headers={"If-None-Match": reply.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_nothing_else_is_served(client: TestClient) -> None:
    check_error(client.get("/docs/swagger-ui.js"), 404)


@pytest.mark.parametrize(("routes", "status"), [("docs", 200), ("page", 401)])
def test_its_files_are_open_where_it_is(routes: str, status: int) -> None:
    with client_of(SyntheticEngine, api_keys="secret", open_routes=routes) as client:
        assert [client.get(path).status_code for path in PATHS] == [status] * len(PATHS)
