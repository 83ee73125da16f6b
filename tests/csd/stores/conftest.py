"""A private server, and the URL of an empty store of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.csd.stores.support import FINGERPRINT, Driven
from tests.servers import RedisServer, server_binary

DURABLE = {"appendonly": "yes", "appendfsync": "always"}

NewStore = Callable[..., Driven]
NewServer = Callable[..., RedisServer]


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[NewServer]:
    """Starts servers with options, each in its own directory."""
    binary = server_binary()
    if binary is None:
        pytest.skip("no redis-server or valkey-server for this platform")
    servers: list[RedisServer] = []

    def start(**options: str) -> RedisServer:
        directory = tmp_path / f"server-{len(servers)}"
        directory.mkdir()
        servers.append(RedisServer(directory, binary, **options))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.kill9()


@pytest.fixture
def server(new_server: NewServer) -> RedisServer:
    """One that keeps what it acknowledged when it is killed."""
    return new_server(**DURABLE)


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'memory.db'}"
    server: RedisServer = request.getfixturevalue("server")
    return server.url


@pytest.fixture
def new_store() -> Iterator[NewStore]:
    stores: list[Driven] = []

    def make(url: str, fingerprint: str = FINGERPRINT, **limits: int) -> Driven:
        stores.append(Driven(url, fingerprint, **limits))
        return stores[-1]

    yield make
    for store in stores:
        store.close()
