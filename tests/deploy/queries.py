"""Every query of the dashboards and of the rules, as Prometheus gets to see it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
PROMETHEUS = ROOT / "deploy/prometheus"
WINDOW = "1m"  # what stands for Grafana's intervals in tests
VARIABLES = {"$job": ".+", "$instance": ".+", "$__rate_interval": WINDOW, "$__range": WINDOW}


@dataclass(frozen=True, slots=True)
class PanelQuery:
    dashboard: str
    panel: str
    expr: str
    instant: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """name: of the recorded series or of the alert."""

    name: str
    expr: str
    alert: bool
    annotations: dict[str, str]


def dashboards() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in DASHBOARDS}


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """All panels but the rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def panel_queries() -> Iterator[PanelQuery]:
    for name, dashboard in dashboards().items():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                expr = target["expr"]
                for variable, value in VARIABLES.items():
                    expr = expr.replace(variable, value)
                yield PanelQuery(name, panel["title"], expr, target["instant"])


def rules() -> list[Rule]:
    found = []
    for path in sorted(PROMETHEUS.glob("rules/*.yml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                name = rule.get("record") or rule["alert"]
                found.append(Rule(name, rule["expr"], "alert" in rule, rule.get("annotations", {})))
    return found


def metric_names(expr: str) -> set[str]:
    """Names of our metrics and recorded series in an expression."""
    return set(re.findall(r"\bracer[_:][a-z0-9_:]+", expr))
