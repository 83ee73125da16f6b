"""Prometheus's own tool on the configuration, the rules and their unit tests."""

from __future__ import annotations

import subprocess

import yaml

from tests.deploy.live import program
from tests.deploy.queries import PROMETHEUS, rules

RULES = sorted(PROMETHEUS.glob("rules/*.yml"))


def promtool(*words: str) -> None:
    done = subprocess.run([program("promtool"), *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_configuration_and_rules_are_valid() -> None:
    promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))
    promtool("check", "rules", *map(str, RULES))


def test_the_rules_pass_their_unit_tests() -> None:
    promtool("test", "rules", str(PROMETHEUS / "tests.yml"))


def test_every_alert_is_tested_firing_and_quiet() -> None:
    written = yaml.safe_load((PROMETHEUS / "tests.yml").read_text(encoding="utf-8"))
    cases = [case for test in written["tests"] for case in test.get("alert_rule_test", [])]
    alerts = {rule.name for rule in rules() if rule.alert}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == alerts


def test_every_alert_says_what_it_means_and_where_to_read_on() -> None:
    for rule in rules():
        if rule.alert:
            assert set(rule.annotations) == {"summary", "description", "runbook_url"}, rule.name
            assert rule.annotations["runbook_url"] == f"docs/operating.md#{rule.name.lower()}"
