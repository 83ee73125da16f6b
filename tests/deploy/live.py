"""The real service on a tiny model, and a real Prometheus that scrapes it, both private to the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.queries import PROMETHEUS, ROOT
from tests.models import build
from tests.servers import free_port
from tests.tiny import tokenizer
from tests.waiting import wait_until


def program(name: str) -> str:
    """The path of a program of Debian's package prometheus."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not installed: run tests/system_packages.sh prometheus")
    return found


@contextmanager
def running(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is gone when the block is left."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env={**os.environ, **environment}, cwd=log.parent
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def save_model(directory: Path) -> Path:
    build("llama").save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return directory


@contextmanager
def service(directory: Path) -> Iterator[httpx.Client]:
    """`racer-csd serve` with CSD allowed and a store, once it is ready."""
    port = free_port()
    flags = {
        "target": save_model(directory / "target"),
        "port": port,
        "store": f"sqlite:{directory / 'ocm.sqlite3'}",
        "max-nodes": 24,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = [
        sys.executable,
        "-m",
        "app.commands.main",
        "serve",
        "--allow-csd",
        "--threads",
        "1",
        "--dtype",
        "float32",
        *words,
    ]
    log = directory / "service.log"
    environment = {"PYTHONPATH": str(ROOT), "RACER_CACHE_DIR": str(directory / "cache")}
    with running(command, log, **environment) as process, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        client.timeout = 60.0
        wait_until(lambda: _answers(client, "/ready") or _ended(process, log), timeout=240.0)
        yield client


class Prometheus:
    """What tests ask of a running server."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def get(self, path: str, **parameters: Any) -> Any:
        """The data of an answer that must be a success."""
        reply = self._client.get(f"/api/v1/{path}", params=parameters)
        body = reply.json()
        assert body["status"] == "success", (parameters, body)
        return body["data"]

    def instant(self, expr: str) -> list[float]:
        return [float(sample["value"][1]) for sample in self._vector(self.get("query", query=expr))]

    def range(self, expr: str, start: float, end: float) -> list[list[float]]:
        """The values of each series, one each second."""
        found = self.get("query_range", query=expr, start=start, end=end, step=1)["result"]
        return [[float(value) for _, value in series["values"]] for series in found]

    @staticmethod
    def _vector(data: Any) -> list[Any]:
        if data["resultType"] == "scalar":
            return [{"value": data["result"]}]
        return list(data["result"])


@contextmanager
def prometheus(directory: Path, target: str) -> Iterator[Prometheus]:
    """A server with the project's own configuration and rules, but with another target and shorter intervals."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(PROMETHEUS / pattern) for pattern in config["rule_files"]]
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [target]}]
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    port = free_port()
    flags = (f"--config.file={path}", f"--storage.tsdb.path={directory / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}")
    command, log = [program("prometheus"), *flags], directory / "prometheus.log"
    with running(command, log) as process, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        client.timeout = 30.0
        wait_until(lambda: _answers(client, "/-/ready") or _ended(process, log), timeout=60.0)
        yield Prometheus(client)


def _answers(client: httpx.Client, path: str) -> bool:
    try:
        return client.get(path).status_code == 200
    except httpx.TransportError:
        return False


def _ended(process: subprocess.Popen[bytes], log: Path) -> bool:
    if process.poll() is not None:
        pytest.fail(f"{log.stem} ended: {log.read_text(errors='replace')[-2000:]}")
    return False
