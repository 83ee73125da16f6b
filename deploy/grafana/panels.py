"""What the dashboards are made of: queries that are never empty and never NaN, panels, rows and their layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SELECTOR = 'job=~"$job",instance=~"$instance"'
WIDTH = 24  # columns of Grafana's grid
Json = dict[str, Any]
Steps = tuple[tuple[float | None, str], ...]  # lower bound and colour; the first has no bound

GOOD: Steps = ((None, "green"),)
SPEEDUP: Steps = ((None, "red"), (0.98, "yellow"), (1.1, "green"))
SHARE_USED: Steps = ((None, "green"), (0.8, "yellow"), (0.95, "red"))
ERRORS: Steps = ((None, "green"), (0.01, "yellow"), (0.05, "red"))
NONE_WANTED: Steps = ((None, "green"), (1e-6, "red"))
ONE_WANTED: Steps = ((None, "red"), (1, "green"))


# -- queries --------------------------------------------------------------------------------------------------------------


def series(name: str, labels: str = "") -> str:
    """The chosen instances' series of one metric."""
    return f"racer_{name}{{{SELECTOR}{',' + labels if labels else ''}}}"


def rate(name: str, labels: str = "", by: str = "") -> str:
    """Per second, over all chosen instances."""
    return _sum(f"rate({series(name, labels)}[$__rate_interval])", by)


def increase(name: str, labels: str = "", by: str = "") -> str:
    """Over the time the dashboard shows."""
    return _sum(f"increase({series(name, labels)}[$__range])", by)


def total(name: str, labels: str = "", by: str = "") -> str:
    return _sum(series(name, labels), by)


def _sum(what: str, by: str) -> str:
    return f"sum by ({by}) ({what})" if by else f"sum({what})"


def ratio(above: str, below: str) -> str:
    """0 where nothing happened; `below` has no labels."""
    return f"{above} / scalar(clamp_min({below}, 1e-9))"


def quantile(q: float, name: str) -> str:
    """Of a histogram; 0 where nothing was observed."""
    return f"(histogram_quantile({q}, {rate(name + '_bucket', by='le')}) >= 0) or vector(0)"


def mean(name: str) -> str:
    return ratio(rate(name + "_sum"), rate(name + "_count"))


# -- panels ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Query:
    """legend: Grafana's template, such as {{source}}. instant: query only the last value."""

    expr: str
    legend: str = ""
    instant: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; type, unit and the rest are Grafana's words. width and height are in cells of the grid."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    thresholds: Steps = GOOD
    stacked: bool = False
    minimum: float | None = 0
    maximum: float | None = None
    decimals: int | None = None
    texts: dict[str, str] = field(default_factory=dict)  # values shown as words

    def build(self, number: int, x: int, y: int) -> Json:
        heatmap = self.kind == "heatmap"
        defaults: Json = {
            "unit": self.unit,
            "thresholds": {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in self.thresholds]},
            "mappings": _mappings(self.texts),
        }
        for name, value in (("min", self.minimum), ("max", self.maximum), ("decimals", self.decimals)):
            if value is not None:
                defaults[name] = value
        if self.kind == "timeseries":
            defaults["custom"] = self._lines()
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [
                {
                    "refId": chr(ord("A") + index),
                    "datasource": DATASOURCE,
                    "expr": query.expr,
                    "legendFormat": query.legend,
                    "instant": query.instant,
                    "range": not query.instant,
                    "format": "heatmap" if heatmap else "time_series",
                }
                for index, query in enumerate(self.queries)
            ],
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": OPTIONS[self.kind](self),
        }

    def _lines(self) -> Json:
        return {
            "lineWidth": 1,
            "fillOpacity": 30 if self.stacked else 8,
            "showPoints": "never",
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if len(self.thresholds) > 1 else "off"},
        }


def _mappings(texts: dict[str, str]) -> list[Json]:
    if not texts:
        return []
    options = {value: {"text": text, "index": index} for index, (value, text) in enumerate(texts.items())}
    return [{"type": "value", "options": options}]


def _reduce() -> Json:
    return {"calcs": ["lastNotNull"], "fields": "", "values": False}


def _stat_options(panel: Panel) -> Json:
    return {
        "reduceOptions": _reduce(),
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "textMode": "name" if panel.unit == "string" else "value",
        "orientation": "auto",
    }


def _line_options(panel: Panel) -> Json:
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def _bar_options(panel: Panel) -> Json:
    return {"reduceOptions": _reduce(), "displayMode": "basic", "orientation": "horizontal", "showUnfilled": True}


def _heatmap_options(panel: Panel) -> Json:
    return {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange", "reverse": False},
        "cellGap": 1,
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": panel.unit},
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": False},
        "legend": {"show": True},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "showValue": "never",
        "filterValues": {"le": 1e-9},
        "rowsFrame": {"layout": "auto"},
    }


OPTIONS = {"stat": _stat_options, "timeseries": _line_options, "bargauge": _bar_options, "heatmap": _heatmap_options}


# -- dashboards -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def dashboard(uid: str, title: str, description: str, rows: Sequence[Row]) -> Json:
    """Rows from top to bottom, panels from left to right, wrapped where they do not fit."""
    panels: list[Json] = []
    y = 0
    for row in rows:
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        number = len(panels) + 1
        panels.append({"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []})
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            panels.append(panel.build(len(panels) + 1, x, y))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["racer-csd"],
        "timezone": "browser",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "links": [_link()],
        "panels": panels,
    }


def _variables() -> list[Json]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    return [
        source,
        _variable("job", "Job", "label_values(racer_build_info, job)"),
        _variable("instance", "Instance", 'label_values(racer_build_info{job=~"$job"}, instance)'),
    ]


def _variable(name: str, label: str, query: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
        "hide": 0,
    }


def _link() -> Json:
    return {
        "title": "racer-csd",
        "type": "dashboards",
        "tags": ["racer-csd"],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }
