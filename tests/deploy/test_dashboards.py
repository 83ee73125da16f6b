"""The dashboards' JSON: what the script writes, valid to Grafana's own types, and readable."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from app.metrics import Metrics
from tests.deploy.queries import DASHBOARDS, ROOT, dashboards, metric_names, panel_queries, panels

GRAFANA = ROOT / "deploy/grafana"
EACH = pytest.mark.parametrize("board", dashboards().values(), ids=[path.stem for path in DASHBOARDS])


def test_the_committed_files_are_what_the_script_writes() -> None:
    done = subprocess.run(
        [sys.executable, str(GRAFANA / "build.py"), "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [path.stem for path in DASHBOARDS] == ["service", "speculation"]


@EACH
def test_grafanas_own_types_know_every_field(board: dict[str, Any]) -> None:
    """What they do not know they drop on the way through; they also refuse values outside their enumerations."""
    register_default_plugins()
    back = json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))
    assert differences(board, back) == []


def differences(wanted: Any, found: Any, path: str = "") -> list[str]:
    """Where `found` lacks something of `wanted`; defaults that it adds do not count."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [
            line
            for name, value in wanted.items()
            for line in (differences(value, found[name], f"{path}.{name}") if name in found else [f"{path}.{name} is lost"])
            if value is not None
        ]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found, strict=True))
        return [line for index, (one, other) in pairs for line in differences(one, other, f"{path}[{index}]")]
    return [] if wanted == found else [f"{path}: {wanted!r} became {found!r}"]


@EACH
def test_panels_explain_themselves(board: dict[str, Any]) -> None:
    titles = [panel["title"] for panel in panels(board)]
    assert len(titles) == len(set(titles))
    for panel in panels(board):
        assert len(panel["description"]) > 10, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"], panel["title"]
        assert all(target["expr"] for target in panel["targets"]), panel["title"]
        several = len(panel["targets"]) > 1
        assert all(target["legendFormat"] or not several for target in panel["targets"]), panel["title"]


@EACH
def test_panels_lie_on_the_grid_side_by_side(board: dict[str, Any]) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        own = set(itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])))
        assert place["x"] + place["w"] <= 24
        assert not own & cells, panel["title"]
        cells |= own
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers))


@EACH
def test_every_query_is_of_the_chosen_instances(board: dict[str, Any]) -> None:
    for panel in panels(board):
        for target in panel["targets"]:
            names = len(metric_names(target["expr"]))
            assert target["expr"].count('job=~"$job",instance=~"$instance"') >= names >= 1, target["expr"]


def test_every_metric_that_is_asked_for_is_exported() -> None:
    metrics = Metrics(("/v1/completions",))
    metrics.watch(lambda: None)
    exported = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    for query in panel_queries():
        assert metric_names(query.expr) <= exported, query


def test_provisioning_points_where_compose_mounts() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/racer.yml").read_text())["providers"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert provider["options"]["path"] == "/etc/grafana/dashboards"
