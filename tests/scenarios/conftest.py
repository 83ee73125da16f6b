"""A saved tiny model, and a private Redis that keeps what it acknowledged when it is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.process import save_model
from tests.servers import RedisServer, server_binary


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Not started yet."""
    binary = server_binary()
    if binary is None:
        pytest.skip("no redis-server or valkey-server for this platform")
    server = RedisServer(tmp_path_factory.mktemp("redis"), binary, appendonly="yes", appendfsync="always")
    yield server
    server.kill9()
