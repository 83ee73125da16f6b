"""The Redis of docker-compose.yml: its command run by a real server, and the address that the service gets."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from csd.stores.url import open_store
from tests.servers import RedisServer, free_port, server_binary
from tests.waiting import wait_until

PASSWORD = "a1b2c3"


@pytest.fixture
def server(compose: dict[str, Any], tmp_path: Path) -> Any:
    """Only the directory and the address are ours."""
    binary = server_binary()
    assert binary is not None
    (tmp_path / "redis-server").symlink_to(binary)
    server = RedisServer(tmp_path, binary, requirepass=PASSWORD)
    server.port = free_port()
    command = [word.replace("$$", "$") for word in compose["services"]["redis"]["command"]]
    command[-1] = command[-1].replace("dir /data\n", f"dir {tmp_path}\nport {server.port}\nbind 127.0.0.1\n")
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "REDIS_PASSWORD": PASSWORD}
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, env=variables, stdout=log, stderr=log) as process:
        try:
            wait_until(lambda: server.command("PING").startswith((b"-NOAUTH", b"+PONG")))
            assert PASSWORD not in Path(f"/proc/{process.pid}/cmdline").read_text()
            yield server
        finally:
            process.terminate()
            assert process.wait(30.0) == 0, "the server itself gets the signal, and saves"


def test_the_server_wants_the_password_and_keeps_what_it_is_told(server: RedisServer, tmp_path: Path) -> None:
    assert server.command("PING").startswith(b"-NOAUTH")
    assert server.command("SET", "key", "value") == b"+OK\r\n"
    assert b"volatile-lru" in server.command("CONFIG", "GET", "maxmemory-policy")
    assert b"268435456" in server.command("CONFIG", "GET", "maxmemory")
    wait_until(lambda: any(path.stat().st_size for path in tmp_path.rglob("*.aof*")))


def test_the_address_that_the_service_gets(server: RedisServer, compose: dict[str, Any]) -> None:
    given = compose["services"]["racer-csd"]["environment"]["RACER_STORE"]
    default = given.removeprefix("${RACER_STORE:-").removesuffix("}")
    address = re.sub(r"\$\{REDIS_PASSWORD:\?[^}]*\}", PASSWORD, default).replace("redis:6379", f"127.0.0.1:{server.port}")
    assert address == server.url
    asyncio.run(_use(address))


async def _use(address: str) -> None:
    store = open_store(address, "fingerprint")
    assert store is not None
    await store.open()
    assert (await store.load()).entries == []
    await store.close()
