"""The image, run as docker-compose.yml runs it: its command, user, environment, volumes and read-only root."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy_container.dockerfile import ROOT
from tests.deploy_container.image import Container, Image, Mounts
from tests.servers import free_port
from tests.waiting import wait_until

TMPFS = "rw,noexec,nosuid,nodev,"  # what docker adds to the options of a tmpfs
SOME_CPU = str(min(os.sched_getaffinity(0)))
PATIENCE = 300.0  # seconds; a loaded machine compiles and imports slowly

pytestmark = pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False).returncode != 0,
    reason="only root may make mounts and change user here; run these tests as root",
)


@pytest.fixture(scope="module")
def mounts(image: Image, compose: dict[str, Any], model: Path, tmp_path_factory: pytest.TempPathFactory) -> Mounts:
    """As the service of docker-compose.yml: its volumes are new, and belong to the image's user as docker makes them."""
    service = compose["services"]["racer-csd"]
    assert service["read_only"] is True
    volumes = {}
    for volume in service["volumes"]:
        path = volume.split(":")[1]
        volumes[path] = tmp_path_factory.mktemp("volume")
        os.chown(volumes[path], *map(int, image.user.split(":")))
    tmpfs = {path: TMPFS + options for path, _, options in (line.partition(":") for line in service["tmpfs"])}
    return Mounts(volumes, {"/models/tiny": model}, tmpfs)


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture
def container(image: Image, mounts: Mounts, port: int) -> Iterator[Container]:
    """On one CPU, which the service has to notice."""
    variables = {"RACER_TARGET": "/models/tiny", "RACER_PORT": str(port), "HF_HUB_OFFLINE": "1"}
    with Container(image, mounts, wrapper=("taskset", "-c", SOME_CPU), **variables) as container:
        yield container


def check_answers(port: int, **fields: Any) -> None:
    body = {"prompt": "abcabcabc", "max_tokens": 12, "ignore_eos": True, **fields}
    reply = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=PATIENCE)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] == 12


def check_ends(container: Container, expected: int = 0) -> str:
    """SIGTERM to process 1 ends it with this code. Returns its output."""
    os.kill(container.pid, signal.SIGTERM)
    code, output = container.wait()
    assert code == expected, output
    assert "Traceback" not in output
    return output


def test_the_image_as_compose_runs_it(container: Container, port: int, mounts: Mounts, compose: dict[str, Any]) -> None:
    check = container.execute(compose["services"]["racer-csd"]["healthcheck"]["test"][1:])
    assert check.returncode == 1, "not ready yet, and it says so"
    assert check.stdout.startswith(("no answer", "/ready: 503"))

    wait_until(container.healthy, PATIENCE)
    status = Path(f"/proc/{container.pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == ["10001"] * 4
    assert fields["Gid"].split() == ["10001"] * 4
    assert fields["NSpid"].split()[-1] == "1"
    assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
    assert fields["NoNewPrivs"].strip() == "1"
    for path in ("/", "/opt/racer-csd", "/etc"):
        assert "Read-only file system" in container.execute(["touch", f"{path}/x"], user="0:0").stderr
    assert httpx.get(f"http://127.0.0.1:{port}/ready").json()["threads"] == 1

    check_answers(port, temperature=0)
    check_answers(port, temperature=1, seed=1)
    kernels = "find . -name '*.nb?' | sort"
    built = container.execute(["sh", "-c", f"cd /opt/racer-csd/kernels && {kernels}"])
    used = container.execute(["sh", "-c", f"cd /tmp/racer-csd-kernels && {kernels}"])
    assert built.stdout.count(".nbc") > 20
    assert built.stdout == used.stdout, "all kernels came with the image: none had to be compiled"

    assert "listening on http://0.0.0.0:" in check_ends(container)
    assert list(next(iter(mounts.volumes.values())).iterdir()), "what is worth keeping went to the volume"


def test_sigterm_while_the_model_loads(image: Image, mounts: Mounts) -> None:
    """The server listens first and loads then: an order to stop has not to wait for that."""
    port = free_port()
    with Container(image, mounts, RACER_TARGET="/models/tiny", RACER_PORT=str(port), HF_HUB_OFFLINE="1") as container:
        wait_until(lambda: container.execute(["python", "/opt/racer-csd/bin/healthcheck.py"]).stdout.startswith("/ready"))
        check_ends(container, 143)


def test_any_user_with_a_local_model_and_nothing_to_write_to(image: Image, model: Path, tmp_path: Path) -> None:
    """`docker run --user 1234:1234 --read-only`, with a volume that belongs to somebody else: what is left is /dev/shm."""
    port = free_port()
    volumes = dict.fromkeys(image.volumes, tmp_path)
    tmp_path.chmod(0o755)
    mounts = Mounts(volumes, {"/models/tiny": model})
    variables = {"RACER_TARGET": "/models/tiny", "RACER_PORT": str(port), "HF_HUB_OFFLINE": "1"}
    with Container(image, mounts, user="1234:1234", **variables) as container:
        wait_until(container.healthy, PATIENCE)
        assert "Uid:\t1234" in Path(f"/proc/{container.pid}/status").read_text()
        check_answers(port, temperature=0)
        assert "Read-only file system" in container.execute(["touch", "/tmp/x"]).stderr
        assert "Permission denied" in container.execute(["touch", f"{image.volumes[0]}/x"]).stderr
        check_ends(container)
    assert not list(tmp_path.iterdir())


def test_a_model_that_has_to_be_fetched_and_a_volume_of_somebody_else(image: Image, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    mounts = Mounts(dict.fromkeys(image.volumes, tmp_path), {}, {"/tmp": TMPFS + "mode=1777"})
    port = str(free_port())
    with Container(image, mounts, user="1234:1234", RACER_PORT=port, RACER_TARGET="smollm2") as container:
        code, output = container.wait(PATIENCE)
    assert code == 1, output
    errors = [line for line in output.splitlines() if line.startswith("racer-csd: error: ")]
    assert len(errors) == 1, output
    assert "/var/cache/racer-csd" in errors[0]
    assert "uid 1234" in errors[0]
    assert "Traceback" not in output


PROCESS_1 = """
import time
from app.commands import main as cli
cli._die_of_sigterm()
print("waiting", flush=True)
time.sleep(600)
"""


def test_process_1_dies_of_sigterm_before_the_server_has_a_handler() -> None:
    import psutil

    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", PROCESS_1]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as unshare:
        assert unshare.stdout is not None
        assert unshare.stdout.readline() == "waiting\n"
        psutil.Process(unshare.pid).children()[0].send_signal(signal.SIGTERM)
        assert unshare.wait(30.0) == 143
