"""Several processes write at once; some are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.csd.stores.conftest import NewStore
from tests.servers import RedisServer
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]


def start_writer(url: str, number: int, batches: int, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        command = [sys.executable, "-m", "tests.csd.stores.writer", url, str(number), str(batches)]
        return subprocess.Popen(command, cwd=ROOT, stdout=out)


def lines(log: Path) -> int:
    return log.read_bytes().count(b"\n")


@pytest.mark.slow
def test_four_processes_add_up_exactly(url: str, new_store: NewStore, tmp_path: Path) -> None:
    batches = 200
    writers = [start_writer(url, number, batches, tmp_path / str(number)) for number in range(1, 5)]
    assert [writer.wait(120) for writer in writers] == [0] * 4
    expected = {(number, number + i): 1.0 for number in range(1, 5) for i in range(1, batches + 1)} | {(0, 1): 4.0 * batches}
    assert new_store(url).counts() == expected


def test_a_killed_writer_leaves_what_was_acknowledged_once(url: str, new_store: NewStore, tmp_path: Path) -> None:
    log = tmp_path / "log"
    writer = start_writer(url, 1, 10**6, log)
    try:
        wait_until(lambda: lines(log) >= 20)
    finally:
        writer.kill()
        writer.wait()
    acknowledged = lines(log)
    counts = new_store(url).counts()
    shared = counts.pop((0, 1))
    assert set(counts.values()) == {1.0} and shared == len(counts)
    assert {(1, 1 + i) for i in range(1, acknowledged + 1)} <= counts.keys()
    assert len(counts) <= acknowledged + 1


@pytest.mark.slow
def test_a_killed_server_loses_and_doubles_nothing(server: RedisServer, new_store: NewStore, tmp_path: Path) -> None:
    batches = 400
    logs = [tmp_path / str(number) for number in (1, 2)]
    writers = [start_writer(server.url, number, batches, log) for number, log in enumerate(logs, 1)]
    try:
        for reached in (20, 60, 100):
            wait_until(lambda reached=reached: min(map(lines, logs)) >= reached)  # type: ignore[misc]
            server.restart()
        assert [writer.wait(120) for writer in writers] == [0, 0]
    finally:
        for writer in writers:
            writer.kill()
    expected = {(number, number + i): 1.0 for number in (1, 2) for i in range(1, batches + 1)} | {(0, 1): 2.0 * batches}
    assert new_store(server.url).counts() == expected
