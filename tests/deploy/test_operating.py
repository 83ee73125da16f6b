"""docs/operating.md against what there is: every metric, panel, recorded series and alert, and none invented."""

from __future__ import annotations

import re

from app.metrics import Metrics
from tests.deploy.queries import ROOT, dashboards, panels, rules

TEXT = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
TABLES = [line.split("|")[1].strip() for line in TEXT.splitlines() if line.startswith("| ")]


def section(title: str) -> list[str]:
    """First cells of the rows of a section's table, split at commas."""
    body = TEXT.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1].strip() for line in body.splitlines() if line.startswith("| ")]
    return [cell for row in rows if row not in ("panel", "series", "---") for cell in row.split(", ")]


def exported() -> set[str]:
    """Names as they stand on the page: counters with _total, histograms without their parts."""
    metrics = Metrics()
    metrics.watch(lambda: None)
    return {family.name + ("_total" if family.type == "counter" else "") for family in metrics.registry.collect()}


def test_every_metric_is_documented_once_and_none_is_invented() -> None:
    documented = [cell.strip("`") for cell in TABLES if cell.startswith("`racer_")]
    assert sorted(documented) == sorted(exported())


def test_no_other_name_is_mentioned() -> None:
    names = set(re.findall(r"\bracer_[a-z0-9_]+", TEXT)) - {"racer_"}
    assert names <= exported()


def test_every_metric_has_a_help_text() -> None:
    metrics = Metrics()
    metrics.watch(lambda: None)
    for family in metrics.registry.collect():
        assert len(family.documentation) > 10, family.name
        assert ("econds" in family.documentation or "time" in family.documentation) or not family.name.endswith("_seconds")


def test_every_panel_is_explained_and_none_is_invented() -> None:
    for name, board in dashboards().items():
        explained = section(f"The dashboard {name.capitalize()}")
        assert sorted(explained) == sorted(panel["title"] for panel in panels(board)), name


def test_every_recorded_series_is_explained_and_none_is_invented() -> None:
    explained = [cell.strip("`") for cell in section("Recorded series")]
    assert sorted(explained) == sorted(rule.name for rule in rules() if not rule.alert)


def test_every_alert_has_its_section_and_none_is_invented() -> None:
    sections = re.findall(r"^### (Racer\w+)$", TEXT, re.MULTILINE)
    assert sorted(sections) == sorted(rule.name for rule in rules() if rule.alert)


def test_links_within_the_page_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
    }
    targets = re.findall(r"\]\(#([^)]+)\)", TEXT) + [
        rule.annotations["runbook_url"].removeprefix("docs/operating.md#") for rule in rules() if rule.alert
    ]
    assert targets
    assert set(targets) <= anchors
