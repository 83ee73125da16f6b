"""Every query of every panel and rule, evaluated by a real Prometheus that scrapes the real service."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.deploy.live import Prometheus, prometheus, service
from tests.deploy.queries import VARIABLES, PanelQuery, dashboards, metric_names, panel_queries, rules
from tests.waiting import wait_until

COMPLETIONS = "/v1/completions"
# Panels that read 0 on a healthy service that has just served a few requests.
QUIET = {
    "Requests running",
    "Requests waiting",
    "Requests that fail",
    "Running and waiting",
    "Turned away",
    "Not read",
    "KV cache",
    "Errors",
    "Store errors",
    "Sessions and conversations",
    "Automaton nodes",
    "Automaton evictions",
}
SPECULATIVE: tuple[dict[str, Any], ...] = (
    {},
    {"drafter": "none"},
    {"max_nodes": 8},
    {"drafter": "racer", "verifier": "csd", "rule": "scg", "tau": 1e-9},
)
Answers = dict[PanelQuery, list[list[float]]]


@dataclass(frozen=True, slots=True)
class Seen:
    """What each query of the panels gave, before any request and after many."""

    server: Prometheus
    idle: Answers
    busy: Answers


def send_traffic(client: httpx.Client) -> None:
    for number in range(24):
        speculative: dict[str, Any] = SPECULATIVE[number % len(SPECULATIVE)]
        body = {"prompt": "abcab" * 6, "max_tokens": 40, "temperature": 0, "ignore_eos": True, "speculative": speculative}
        if "verifier" in speculative:  # sampled tokens leave the drafts often, and without the memory's word all may be rescued
            body |= {"temperature": 1, "seed": number}
        if number % 2:
            with client.stream("POST", COMPLETIONS, json={**body, "stream": True}) as reply:
                assert b"[DONE]" in reply.read()
        else:
            assert client.post(COMPLETIONS, json=body).status_code == 200
    assert client.post(COMPLETIONS, json={"prompt": 1.5}).status_code == 400


def ask_all(server: Prometheus, start: float) -> Answers:
    """The values of each query: one for an instant one, a line since `start` for the others."""
    end = time.time()
    answers: Answers = {}
    for query in panel_queries():
        answers[query] = (
            [[value] for value in server.instant(query.expr)] if query.instant else server.range(query.expr, start, end)
        )
    return answers


def scrapes(server: Prometheus, since: float) -> float:
    """Successful scrapes since then."""
    return sum(server.instant(f"sum_over_time(up[{math.ceil(time.time() - since)}s])"))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    directory = tmp_path_factory.mktemp("live")
    with service(directory) as client, prometheus(directory, client.base_url.netloc.decode()) as server:
        started = time.time()
        wait_until(lambda: scrapes(server, started) >= 3, timeout=60.0)
        begun = time.time()
        wait_until(lambda: time.time() > begun + 2.0)  # two points of each line
        idle = ask_all(server, begun)
        send_traffic(client)
        page = client.get("/metrics").text
        (emitted,) = [float(line.split()[1]) for line in page.splitlines() if line.startswith("racer_generation_tokens_total ")]
        wait_until(lambda: server.instant("racer_generation_tokens_total") == [emitted], timeout=60.0)
        wait_until(lambda: server.instant("racer_store_acknowledged_increments_total") > [0.0], timeout=60.0)
        served = time.time()
        wait_until(lambda: scrapes(server, served) >= 2, timeout=60.0)
        yield Seen(server, idle, ask_all(server, begun))


def test_on_an_idle_service_every_panel_shows_numbers(seen: Seen) -> None:
    for query, lines in seen.idle.items():
        assert lines, query
        assert all(math.isfinite(value) for line in lines for value in line), (query, lines)


def test_after_traffic_every_panel_shows_numbers(seen: Seen) -> None:
    assert len(seen.busy) > 60
    for query, lines in seen.busy.items():
        assert lines, query
        assert all(math.isfinite(value) for line in lines for value in line), (query, lines)


def test_traffic_is_seen_on_every_panel_that_it_concerns(seen: Seen) -> None:
    highest: dict[str, float] = {}
    for query, lines in seen.busy.items():
        values = [value for line in lines for value in line]
        highest[query.panel] = max(highest.get(query.panel, 0.0), *values)
    blank = {panel for panel, value in highest.items() if value <= 0.0}
    assert blank <= QUIET, blank - QUIET


def test_what_should_be_a_share_is_one(seen: Seen) -> None:
    shares = {panel["title"] for board in dashboards().values() for panel in board["panels"] if _unit(panel) == "percentunit"}
    assert shares <= {query.panel for query in seen.busy}
    for query, lines in seen.busy.items():
        if query.panel in shares:
            assert all(0.0 <= value <= 1.0 + 1e-9 for line in lines for value in line), query


def _unit(panel: dict[str, Any]) -> str:
    return str(panel.get("fieldConfig", {}).get("defaults", {}).get("unit", ""))


def test_every_rule_is_evaluated_without_error(seen: Seen) -> None:
    def groups() -> list[dict[str, Any]]:
        return [rule for group in seen.server.get("rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] != "unknown" for rule in groups()), timeout=60.0)
    assert {rule["name"] for rule in groups()} == {rule.name for rule in rules()}
    assert all(rule["health"] == "ok" for rule in groups()), groups()
    firing = [rule["name"] for rule in groups() if rule["type"] == "alerting" and rule["state"] == "firing"]
    assert firing == []


def test_every_rule_finds_the_series_that_it_reads(seen: Seen) -> None:
    later = {"racer:accepted_per_draft:avg6h"}  # of half an hour ago
    for rule in rules():
        found = seen.server.instant(rule.expr)
        assert all(math.isfinite(value) for value in found), rule
        if not rule.alert and rule.name not in later:
            assert found, rule
        for name in metric_names(rule.expr) - later:
            assert seen.server.get("series", **{"match[]": name}), (rule.name, name)


def test_every_variable_has_values(seen: Seen) -> None:
    for board in dashboards().values():
        for variable in board["templating"]["list"]:
            if variable["type"] != "query":
                continue
            selector, label = variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
            for name, value in VARIABLES.items():
                selector = selector.replace(name, value)
            assert seen.server.get(f"label/{label}/values", **{"match[]": selector}), variable["name"]


def test_the_speedup_is_the_same_by_gauge_and_by_counters(seen: Seen) -> None:
    (gauge,) = seen.server.instant("racer_speedup_ratio")
    (counters,) = seen.server.instant("racer_plain_equivalent_seconds_total / racer_decode_seconds_total")
    assert gauge == pytest.approx(counters, rel=0.05)
