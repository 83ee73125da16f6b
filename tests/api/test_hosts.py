"""A server without keys does not answer what a web page of another site makes a browser send."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from app import server
from app.api.errors import ApiError
from app.api.hosts import Hosts, is_loopback
from tests.api.support import COMPLETIONS, check_error, client_of, new_settings
from tests.synthetic import SyntheticEngine

ASKED = {"prompt": "a", "max_tokens": 1}


def allows(hosts: Hosts, host: str | None = "localhost", origin: str | None = None, method: str = "POST") -> bool:
    headers = {name: value for name, value in (("host", host), ("origin", origin)) if value is not None}
    try:
        hosts.check(method, headers)
    except ApiError as error:
        return error.status != 403
    return True


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LocalHost:8000", True),
        ("localhost.", True),
        ("racer.localhost:8000", True),
        ("127.0.0.1:8000", True),
        ("127.8.8.8", True),
        ("[::1]:8000", True),
        ("192.168.1.5:8000", True),  # no name that could point elsewhere tomorrow
        (None, True),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("xlocalhost", False),
        ("", False),
        ("[::1", True),
        ("[evil.example]", False),
    ],
)
def test_names_on_loopback(host: str | None, allowed: bool) -> None:
    assert allows(Hosts((), "127.0.0.1"), host) is allowed
    assert allows(Hosts((), "127.0.0.1"), host, method="GET") is allowed
    assert allows(Hosts((), "localhost"), host) is allowed
    assert allows(Hosts(("*",), "127.0.0.1"), host)
    assert allows(Hosts((), "0.0.0.0"), host)  # who listens for all has names that nobody here knows


def test_names_that_are_set() -> None:
    hosts = Hosts(("chat.example.com", "*.lan.example"), "0.0.0.0")
    for name in ("chat.example.com", "chat.example.com:8080", "a.lan.example", "localhost", "10.0.0.1:8000"):
        assert allows(hosts, name)
    for name in ("example.com", "evil.chat.example.com", "lan.example", "a.b.lan.example"):
        assert not allows(hosts, name)


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://localhost:8000", True),
        ("http://127.0.0.1:3000", True),
        ("https://chat.example.com", True),  # of allowed_hosts
        ("https://ui.example.org", True),  # of cors_origins
        ("vscode-webview://1abc", True),
        ("https://evil.example", False),
        ("https://ui.example.org:444", False),
        ("null", False),
        ("", False),
        ("http://[", False),
    ],
)
def test_pages(origin: str | None, allowed: bool) -> None:
    hosts = Hosts(("chat.example.com",), "127.0.0.1", ("https://ui.example.org",))
    assert allows(hosts, origin=origin) is allowed
    assert allows(hosts, "chat.example.com", origin) is allowed
    assert allows(hosts, origin=origin, method="GET")  # a browser does not show it to the page
    assert allows(Hosts((), "127.0.0.1", ("*",)), origin=origin)
    assert allows(Hosts((), "0.0.0.0"), origin=origin)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://testserver"}, 200),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "", "Origin": "https://evil.example"}, 403),
    ],
)
def test_drive_by(headers: dict[str, str], status: int) -> None:
    engine = SyntheticEngine()
    with client_of(lambda: engine, allowed_hosts="testserver") as client:
        reply = client.post(COMPLETIONS, json=ASKED, headers=headers)
        assert reply.status_code == status
        assert len(engine.requests) == (status == 200)
        if status == 403:
            error = check_error(reply, 403, code="forbidden")
            assert "evil" not in error["message"]
            assert "RACER_ALLOWED_HOSTS" in error["message"] or "RACER_CORS_ORIGINS" in error["message"]


def test_who_has_a_key_may_come_by_any_name() -> None:
    headers = {"Authorization": "Bearer key", "Host": "evil.example", "Origin": "https://evil.example"}
    with client_of(SyntheticEngine, allowed_hosts="", api_keys="key") as client:
        assert client.post(COMPLETIONS, json=ASKED, headers=headers).status_code == 200
        check_error(client.post(COMPLETIONS, json=ASKED, headers={**headers, "Authorization": ""}), 401)


@pytest.mark.parametrize("name", ["127.0.0.1", "::1", "[::1]", "::ffff:127.0.0.1", "localhost", "a.localhost"])
def test_loopback(name: str) -> None:
    assert is_loopback(name)


@pytest.mark.parametrize("name", ["0.0.0.0", "::", "192.168.0.1", "example.com", "", "localhost.example"])
def test_not_loopback(name: str) -> None:
    assert not is_loopback(name)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [({"host": "0.0.0.0"}, True), ({"host": "0.0.0.0", "api_keys": "key"}, False), ({"host": "127.0.0.1"}, False)],
)
def test_a_server_open_to_all_says_so(settings: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    def load() -> SyntheticEngine:
        raise OSError("no model")

    with caplog.at_level(logging.WARNING):
        assert server.run(new_settings(port=0, **settings), load) == 1
    assert ("no API key is set" in caplog.text) is warned
