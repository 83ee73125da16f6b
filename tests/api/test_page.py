"""The playground's files over HTTP: types, caching, the security policy, and that they ask nobody else."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from app.api.pages import web_files
from tests.api.support import check_error, client_of
from tests.synthetic import SyntheticEngine

NAMES = sorted(web_files())
PATHS = ["/", *(f"/web/{name}" for name in NAMES)]
TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
SVG_NAMESPACE = "http://www.w3.org/2000/svg"  # a name, not an address


@pytest.mark.parametrize("path", PATHS)
def test_a_file_comes_with_its_type_a_tag_and_a_closed_policy(client: TestClient, path: str) -> None:
    reply = client.get(path)
    assert reply.status_code == 200
    kind = "html" if path == "/" else path.rsplit(".", 1)[1]
    assert reply.headers["content-type"] == TYPES.get(kind, "image/svg+xml")
    assert reply.headers["x-content-type-options"] == "nosniff"
    policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert set(policy.values()) == {"'none'", "'self'"}  # so nothing inline, nothing evaluated, no other host
    assert reply.headers["cache-control"] == "no-cache"
    etag = reply.headers["etag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = client.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        assert "content-security-policy" in again.headers
    assert client.get(path, headers={"If-None-Match": '"other"'}).content == reply.content


@pytest.mark.parametrize("name", NAMES)
def test_no_file_names_another_host_or_runs_inline_code(name: str) -> None:
    text = web_files()[name].content.decode().replace(SVG_NAMESPACE, "")
    assert not re.search(r"(?:https?:)?//[\w-]+\.\w", text)
    assert "eval(" not in text
    assert "innerHTML" not in text
    if name.endswith(".html"):
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)


def test_every_file_is_used() -> None:
    """Each is named by another: by its name in a link, a script or an import."""
    texts = {name: web_files()[name].content.decode() for name in NAMES}
    for name in NAMES:
        assert name == "index.html" or any(name in text for other, text in texts.items() if other != name), name


@pytest.mark.parametrize(
    "path", ["/web/", "/web/nope.js", "/web/../page.py", "/web/%2e%2e/page.py", "/web/..%2fpage.py", "/web/a/b"]
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    check_error(client.get(path), 404)


def test_the_playground_needs_no_key_and_no_model() -> None:
    engine = SyntheticEngine()
    with client_of(lambda: engine, api_keys="secret") as client:
        engine.ready = False
        for path in PATHS:
            assert client.get(path).status_code == 200
        assert client.get("/v1/models").status_code == 401
