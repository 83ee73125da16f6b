"""A private nginx with the example configuration, its addresses replaced and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import httpx

from tests.deploy_container.dockerfile import ROOT
from tests.servers import free_port
from tests.waiting import wait_until

EXAMPLE = ROOT / "deploy/nginx/racer-csd.conf"
MAIN = """
{user}
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log stderr warn;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    include {directory}/racer-csd.conf;
}}
"""


@contextmanager
def nginx_before(replicas: Sequence[str], directory: Path) -> Iterator[str]:
    """Its base URL. replicas: addresses as 127.0.0.1:8000, as many as each upstream of the example has."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    assert program is not None, "nginx is missing: tests/system_packages.sh nginx"
    port = free_port()
    addresses = cycle(replicas)
    example = EXAMPLE.read_text()
    example, listeners = re.subn(r"listen 8080;", f"listen 127.0.0.1:{port};", example)
    example, servers = re.subn(r"(?<=    server )127\.0\.0\.1:\d+", lambda _: next(addresses), example)
    assert (listeners, servers) == (1, 2 * len(replicas))
    (directory / "racer-csd.conf").write_text(example)
    user = "user root;" if os.getuid() == 0 else ""
    (directory / "nginx.conf").write_text(MAIN.format(user=user, directory=directory))
    command = [program, "-p", str(directory), "-e", "stderr", "-c", str(directory / "nginx.conf")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr
    with (directory / "nginx.log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            wait_until(lambda: process.poll() is not None or _answers(f"http://127.0.0.1:{port}/metrics"))
            assert process.poll() is None, (directory / "nginx.log").read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30.0)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 404
    except httpx.TransportError:
        return False
