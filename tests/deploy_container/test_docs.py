"""docs/deployment.md names what exists; the systemd unit agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from app.api.routes import PATHS
from app.metrics import Metrics
from app.settings import ENV_PREFIX
from app.watchdog import EVERY
from tests.deploy_container import dockerfile
from tests.deploy_container.dockerfile import ROOT
from tests.deploy_container.test_files import FLUSH, SETTINGS, manifest, seconds

TEXT = (ROOT / "docs/deployment.md").read_text()
FILES = sorted(
    set(re.findall(r"\b(?:deploy|docker|docs|tests)/[\w./-]*\w|\bdocker-compose[\w.]*\.yml|\brequirements\.lock", TEXT))
)


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith(("deploy/grafana", "deploy/prometheus"))])
def test_files(name: str) -> None:
    path = ROOT / ("docker/.env.example" if name == "docker/.env" else name)
    assert path.exists()


def test_files_of_monitoring(compose: dict[str, Any]) -> None:
    services = compose["services"]
    mounted = [volume.split(":")[0] for name in ("prometheus", "grafana") for volume in services[name]["volumes"]]
    named = {name for name in FILES if name.startswith(("deploy/grafana", "deploy/prometheus"))}
    assert named <= {path.removeprefix("./") for path in mounted if path.startswith("./")}
    assert len(named) == 2


def test_links() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert targets
    for target in targets:
        assert (ROOT / "docs" / target).exists(), target


def test_settings() -> None:
    named = set(re.findall(rf"\b{ENV_PREFIX}[A-Z_]+\b", TEXT))
    assert len(named) > 12
    assert named <= SETTINGS


def test_metrics_and_routes() -> None:
    page = Metrics(PATHS)
    page.watch(lambda: None)
    for name in set(re.findall(r"`(racer_\w+)`", TEXT)):
        assert f"\n{name} " in page.render().decode()
    assert {"/ready", "/health", "/metrics"} <= set(PATHS) & set(re.findall(r"`(/\w+)`", TEXT))


def test_build_arguments() -> None:
    section = TEXT[TEXT.index("## The image") : TEXT.index("## GPU")]
    named = set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))
    assert named == set(re.findall(r"^ARG (\w+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))


def test_ports_of_compose(compose: dict[str, Any]) -> None:
    published = {
        port.split(":-")[1].split("}")[0] for service in compose["services"].values() for port in service.get("ports", [])
    }
    assert published == set(re.findall(r"http://127\.0\.0\.1:(\d+) \|", TEXT))


def test_the_systemd_unit() -> None:
    lines = (ROOT / "deploy/systemd/racer-csd.service").read_text().splitlines()
    pairs = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
    environment = dict(value.split("=", 1) for name, value in pairs if name == "Environment")
    unit = dict(pairs)
    assert {name for name in environment if name.startswith(ENV_PREFIX)} <= SETTINGS
    assert int(unit["TimeoutStopSec"]) > int(environment["RACER_SHUTDOWN_GRACE"]) + FLUSH
    cache = Path("/var/cache") / unit["CacheDirectory"]
    assert environment["RACER_CACHE_DIR"] == unit["WorkingDirectory"] == str(cache)
    assert dockerfile.environment(dockerfile.read()["final"], "")["RACER_CACHE_DIR"] == str(cache)
    assert unit["ExecStart"].split()[1:] == ["serve"]
    assert unit["Type"] == "notify" and unit["Restart"] == "on-failure"
    assert int(unit["WatchdogSec"]) > 3 * EVERY


def test_the_times_of_those_who_stop_it(compose: dict[str, Any]) -> None:
    rows = {line.split("|")[1].strip(): line for line in TEXT.splitlines() if line.startswith("| ")}
    service = compose["services"]["racer-csd"]
    unit = (ROOT / "deploy/systemd/racer-csd.service").read_text()
    pod = manifest("deployment")["spec"]["template"]["spec"]
    grace = manifest("configmap")["data"]["RACER_SHUTDOWN_GRACE"]
    stop, own = re.findall(r"(?:TimeoutStopSec|RACER_SHUTDOWN_GRACE)=(\d+)", unit)[::-1]
    assert (
        f"{int(seconds(service['stop_grace_period']))} s, grace {service['environment']['RACER_SHUTDOWN_GRACE']} "
        in rows["compose"]
    )
    assert f"{pod['terminationGracePeriodSeconds']} s, grace {grace}, " in rows["Kubernetes"]
    assert f"{stop} s, grace {own} " in rows["systemd"]
    assert f"longer than\n`RACER_SHUTDOWN_GRACE` by {FLUSH:g} seconds" in TEXT
