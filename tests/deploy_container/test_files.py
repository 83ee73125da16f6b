"""Dockerfile, compose files and Kubernetes manifests: against published schemas, and against each other and the code."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule

import app.engine.correction
import app.engine.scheduler.scheduler
import app.server
from app.api.routes import PATHS
from app.metrics import Metrics
from app.settings import ENV_PREFIX, Settings
from tests.deploy_container import dockerfile
from tests.deploy_container.dockerfile import ROOT

COMPOSE = ("docker-compose.yml", "docker-compose.gpu.yml")
KUBERNETES = ROOT / "deploy/kubernetes"
MANIFESTS = sorted(path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml")
CUSTOM: dict[str, Any] = {"ScaledObject": ScaledObject, "PodMonitor": PodMonitor, "PrometheusRule": PrometheusRule}
# seconds that the end takes at most, after the grace
FLUSH = app.engine.scheduler.scheduler.JOIN_SECONDS + app.engine.correction.FLUSH_SECONDS + app.server.FLUSH_SECONDS
SETTINGS = {ENV_PREFIX + name.upper() for name in Settings.model_fields}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def manifest(name: str) -> Any:
    return load(KUBERNETES / f"{name}.yaml")


def container() -> Any:
    (found,) = manifest("deployment")["spec"]["template"]["spec"]["containers"]
    return found


# -- the image -----------------------------------------------------------------------------------------------------------


def test_hadolint_has_nothing_to_say() -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert program is not None
    done = run(program, "--no-color", "--failure-threshold=style", "Dockerfile")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_is_not_root_and_starts_without_a_shell() -> None:
    final = dockerfile.read()["final"]
    assert dockerfile.last(final, "USER").text == "10001:10001"
    for word in ("ENTRYPOINT", "CMD"):
        assert dockerfile.last(final, word).text.startswith("["), "a shell would keep the signals"
    assert dockerfile.last(final, "STOPSIGNAL").text == "SIGTERM"
    assert "--start-period=" in dockerfile.last(final, "HEALTHCHECK").text
    values = dockerfile.environment(final, "")
    assert {name for name in values if name.startswith(ENV_PREFIX)} <= SETTINGS
    volume = dockerfile.last(final, "VOLUME").arguments[0]
    assert all(values[name].startswith(volume) for name in ("HOME", "HF_HOME", "RACER_CACHE_DIR"))


def test_the_build_context_holds_what_the_dockerfile_copies_and_no_more() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copies = [
        line for stage in dockerfile.read().values() for line in stage if line.word == "COPY" and "from" not in line.options
    ]
    copied = {source for line in copies for source in line.paths[:-1]}
    assert copied == allowed
    assert all((ROOT / path).exists() for path in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {f"{path}*" for path in copied if (ROOT / path).is_dir()} == set(packages)


@pytest.mark.parametrize("path", ["docker/entrypoint.sh", "tests/system_packages.sh"])
def test_scripts_are_sound(path: str) -> None:
    assert (ROOT / path).stat().st_mode & 0o111 or path.startswith("docker/"), "the Dockerfile sets the mode of its own"
    assert run("sh", "-n", path).returncode == 0


# -- compose -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_files_follow_the_published_schema(name: str) -> None:
    done = run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_service_is_confined(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"racer-csd", "redis", "prometheus", "grafana"}
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}, name
        assert service["healthcheck"]["start_period"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert not service["image"].endswith(":latest"), name
    assert "ports" not in compose["services"]["redis"]
    assert compose["networks"]["backend"]["internal"] is True


def test_what_compose_names_is_declared(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source.startswith("./deploy/") or source in compose["volumes"], (name, source)
        for other, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in compose["services"][other]
        for network in service.get("networks", ["default"]):
            assert network == "default" or network in compose["networks"]


def test_files_that_compose_mounts_exist(compose: dict[str, Any]) -> None:
    for name in ("prometheus", "grafana"):
        mounted = [volume.split(":")[0] for volume in compose["services"][name]["volumes"] if volume.startswith("./")]
        assert mounted
        assert [path for path in mounted if not (ROOT / path).exists()] == []


def test_the_service_of_compose_is_the_image(compose: dict[str, Any]) -> None:
    service = compose["services"]["racer-csd"]
    assert {name for name in service["environment"] if name.startswith(ENV_PREFIX)} <= SETTINGS
    check = dockerfile.last(dockerfile.read()["final"], "HEALTHCHECK").text
    assert service["healthcheck"]["test"] == ["CMD", *json.loads(check[check.index("[") :])]
    for name in ("interval", "timeout", "start_period", "retries"):
        assert f"--{name.replace('_', '-')}={service['healthcheck'][name]}" in check
    assert seconds(service["stop_grace_period"]) > service["environment"]["RACER_SHUTDOWN_GRACE"] + FLUSH


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


def test_no_secret_has_a_value_in_git() -> None:
    values = dict(line.split("=", 1) for line in env_example())
    texts = "".join((ROOT / name).read_text() for name in COMPOSE)
    for name in ("REDIS_PASSWORD", "GRAFANA_PASSWORD"):
        assert values[name] == ""
        uses = re.findall(rf"(?<!\$)\$\{{{name}([^}}]*)\}}", texts)
        assert uses
        assert all(use.startswith(":?") for use in uses), f"compose stops where {name} is not set"
    assert run("git", "check-ignore", ".env").returncode == 0


def test_the_example_of_env_sets_what_compose_reads(compose: dict[str, Any]) -> None:
    texts = "".join((ROOT / name).read_text() for name in COMPOSE)
    read = set(re.findall(r"(?<!\$)\$\{(\w+)", texts))
    passed = {name for name, value in compose["services"]["racer-csd"]["environment"].items() if value is None}
    named = {line.split("=", 1)[0] for line in env_example()}
    assert read - {"RACER_STORE"} <= named
    assert named <= read | passed


def test_env_can_set_every_setting_that_the_image_does_not(compose: dict[str, Any]) -> None:
    environment = compose["services"]["racer-csd"]["environment"]
    left_out = {f"{ENV_PREFIX}{name}" for name in ("HOST", "PORT", "CACHE_DIR", "WORKERS")}
    assert {name for name in environment if name.startswith(ENV_PREFIX)} == SETTINGS - left_out
    given = {"RACER_STORE", "RACER_SHUTDOWN_GRACE", "RACER_ALLOWED_HOSTS"}
    assert {name for name, value in environment.items() if value is not None} == given


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ({"RACER_API_KEYS": " one , two"}, "one"),
        ({"RACER_API_KEYS": "", "RACER_API_KEYS_FILE": "keys"}, "three"),
        ({"RACER_API_KEYS_FILE": "nowhere"}, None),
        ({}, None),
    ],
)
def test_the_healthcheck_has_a_key_where_it_needs_one(
    variables: dict[str, str], key: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("# a comment\n\n three\nfour\n")
    monkeypatch.chdir(tmp_path)
    for name in ("RACER_API_KEYS", "RACER_API_KEYS_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    authorization = runpy.run_path(str(ROOT / "docker/healthcheck.py"))["authorization"]
    assert authorization() == ({} if key is None else {"Authorization": f"Bearer {key}"})


def env_example() -> list[str]:
    lines = (ROOT / "docker/.env.example").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


# -- Kubernetes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_follow_the_published_schemas(path: Path) -> None:
    data = load(path)
    model = CUSTOM.get(data["kind"])
    if model is None:
        kubernetes_validate.validate(data, "1.31", strict=True)
        kubernetes_validate.validate(data, kubernetes_validate.latest_version(), strict=True)
    else:  # fields it does not know are dropped
        assert model.model_validate(data).model_dump(mode="json", by_alias=True, exclude_unset=True) == data


def test_the_kustomization_names_every_manifest_but_the_alternatives() -> None:
    listed = set(manifest("kustomization")["resources"])
    assert {path.name for path in MANIFESTS} - listed == {"secret.example.yaml", "keda-scaledobject.yaml"}
    assert listed <= {path.name for path in MANIFESTS}
    gpu = load(KUBERNETES / "gpu/kustomization.yaml")
    assert gpu["resources"] == [".."]
    patch = load(KUBERNETES / "gpu" / gpu["patches"][0]["path"])
    assert patch["metadata"]["name"] == manifest("deployment")["metadata"]["name"]
    assert patch["spec"]["template"]["spec"]["containers"][0]["name"] == container()["name"]
    kubernetes_validate.validate(patch | {"spec": patch["spec"] | {"selector": {}}}, "1.31", strict=True)


def test_manifests_agree_with_each_other() -> None:
    deployment, port = manifest("deployment"), container()["ports"][0]["name"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (
        deployment["spec"]["selector"]["matchLabels"],
        manifest("service")["spec"]["selector"],
        manifest("networkpolicy")["spec"]["podSelector"]["matchLabels"],
        manifest("poddisruptionbudget")["spec"]["selector"]["matchLabels"],
        manifest("podmonitor")["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    assert manifest("service")["spec"]["ports"][0]["targetPort"] == port
    assert manifest("podmonitor")["spec"]["podMetricsEndpoints"][0]["port"] == port
    assert manifest("networkpolicy")["spec"]["ingress"][0]["ports"] == [{"port": port}]
    name = deployment["metadata"]["name"]
    assert (
        manifest("hpa")["spec"]["scaleTargetRef"]["name"]
        == manifest("keda-scaledobject")["spec"]["scaleTargetRef"]["name"]
        == name
    )
    sources = container()["envFrom"]
    assert sources[0]["configMapRef"]["name"] == manifest("configmap")["metadata"]["name"]
    assert sources[1]["secretRef"] == {"name": manifest("secret.example")["metadata"]["name"]}, "not optional"
    claims = {volume["persistentVolumeClaim"]["claimName"] for volume in pod()["volumes"] if "persistentVolumeClaim" in volume}
    assert claims == {manifest("pvc")["metadata"]["name"]}


def pod() -> Any:
    return manifest("deployment")["spec"]["template"]["spec"]


def test_probes_and_grace() -> None:
    paths = {name: container()[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/ready", "readiness": "/ready", "liveness": "/health"}
    assert set(paths.values()) <= set(PATHS)
    wait = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = float(manifest("configmap")["data"]["RACER_SHUTDOWN_GRACE"])
    assert pod()["terminationGracePeriodSeconds"] > wait + grace + FLUSH
    startup = container()["startupProbe"]
    assert manifest("deployment")["spec"]["progressDeadlineSeconds"] > startup["periodSeconds"] * startup["failureThreshold"]


def test_the_pod_monitor_names_the_job_that_the_alerts_name() -> None:
    (endpoint,) = manifest("podmonitor")["spec"]["podMetricsEndpoints"]
    (scrape,) = load(ROOT / "deploy/prometheus/prometheus.yml")["scrape_configs"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": scrape["job_name"]}]
    rules = (ROOT / "deploy/prometheus/rules/racer.yml").read_text()
    assert set(re.findall(r'job="([^"]+)"', rules)) == {scrape["job_name"]}


def test_replicas_on_gpus_do_not_surge() -> None:
    strategy = load(KUBERNETES / "gpu/deployment.yaml")["spec"]["strategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": 0, "maxUnavailable": 1}
    assert manifest("deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_the_pod_is_confined_as_the_image_expects() -> None:
    final = dockerfile.read()["final"]
    security = pod()["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == dockerfile.last(final, "USER").text
    assert security["fsGroup"] == security["runAsGroup"]
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["mountPath"] for mount in container()["volumeMounts"]}
    assert mounts == {dockerfile.last(final, "VOLUME").arguments[0], "/tmp"}
    assert str(container()["ports"][0]["containerPort"]) == dockerfile.environment(final, "")["RACER_PORT"]


def test_settings_and_metrics_that_manifests_name_exist() -> None:
    assert set(manifest("configmap")["data"]) <= SETTINGS
    assert set(manifest("secret.example")["stringData"]) <= SETTINGS
    page = Metrics(PATHS)
    page.watch(lambda: None)
    known = page.render().decode()
    trigger = manifest("keda-scaledobject")["spec"]["triggers"][0]["metadata"]["query"]
    for name in (manifest("hpa")["spec"]["metrics"][0]["pods"]["metric"]["name"], *re.findall(r"racer_\w+", trigger)):
        assert f"\n{name} " in known, name
