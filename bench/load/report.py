"""The report of a load test: report.json, and its tables in report.md."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.engine.models.machine import processor
from bench import host
from bench.load.figures import against_plain, figures
from bench.load.plan import LoadPlan
from bench.load.sample import Sample
from bench.markdown import number, table
from bench.statistics import ratio
from csd.files import write_whole

REPORTS = JSON_REPORT, MARKDOWN_REPORT = "report.json", "report.md"
SERVER_FACTS = ("device", "dtype", "threads", "max_context", "drafter", "verifier", "draft", "max_nodes", "tree_attention")
LATENCIES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "e2e", "pause_ms": "longest pause"}
METHOD = (
    "tokens_per_s: completion tokens of the answered requests over the seconds of the blocks, each from its first request sent "
    "to its last answer. ttft: to the first text; tpot: per token after the first; pause: the longest between two pieces of "
    "text of an answer. Times count from when a request was sent, in an open loop from when it was due. mat: tokens emitted by "
    "verify steps over verify steps, of all requests together. ratio_to_plain: of tokens_per_s, in one run, its blocks "
    "interleaved. Failed requests count in errors alone."
)


def build(
    plan: LoadPlan,
    requests: int,
    samples: Sequence[Sample],
    blocks: Mapping[str, Mapping[int, float]],
    server: Mapping[str, Any],
    model: str | None,
) -> dict[str, Any]:
    """The content of report.json: the figures of the first way, and under `runs` those of each. requests: of each way."""
    plain = next((way.name for way in plan.ways if way.plain), None)
    by_way = {way.name: [sample for sample in samples if sample.way == way.name] for way in plan.ways}
    runs = []
    for way in plan.ways:
        own = by_way[way.name]
        compared = {} if plain is None else against_plain(own, by_way[plain])
        runs.append({"name": way.name, "speculative": way.speculative, **figures(own, blocks.get(way.name, {})), **compared})
    base = next((run["tokens_per_s"] for run in runs if run["name"] == plain), None)
    for run in runs:
        run["ratio_to_plain"] = ratio(run["tokens_per_s"] or 0.0, base) if base else None
    return {
        **runs[0],
        "runs": runs,
        "status": "complete" if len(samples) == requests * len(plan.ways) else "partial",
        "answered": sum(run["completed"] for run in runs),
        "arguments": plan.arguments(),
        "environment": {
            "date": host.now(),
            "cpu": processor(),
            "cpus": os.cpu_count(),
            "platform": platform.platform(),
            "versions": host.versions(("racer-csd", "httpx")),
            "command": host.command(),
            "model": model,
            "server": {fact: server[fact] for fact in SERVER_FACTS if fact in server},
        },
        "method": METHOD,
    }


def write(report: dict[str, Any], directory: Path) -> list[Path]:
    """Write both; returns their paths."""
    write_whole(directory / JSON_REPORT, json.dumps(report, indent=2) + "\n")
    write_whole(directory / MARKDOWN_REPORT, as_markdown(report))
    return [directory / name for name in REPORTS]


def as_markdown(report: dict[str, Any]) -> str:
    """The content of report.md."""
    parts = [
        f"# Load test of {report['environment']['model'] or 'a server'}",
        _setting(report),
        _throughput(report["runs"]),
        _latencies(report["runs"]),
        _errors(report["runs"]),
        report["method"],
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _setting(report: dict[str, Any]) -> str:
    arguments, environment = report["arguments"], report["environment"]
    bound = "" if arguments["concurrency"] is None else f", at most {arguments['concurrency']} at once"
    loop = (
        f"closed loop, {arguments['concurrency']} at once"
        if arguments["rate"] is None
        else f"open loop, {arguments['rate']:g} requests a second{bound}"
    )
    server = ", ".join(f"{fact} {value}" for fact, value in environment["server"].items() if value is not None)
    lines = [f"{loop}, {arguments['max_tokens']} tokens at most, temperature {arguments['temperature']:g}", server]
    if report["status"] == "partial":
        lines.append("**the run was not finished**")
    return "\n".join(f"- {line}" for line in lines if line) + f"\n\n    {environment['command']}"


def _throughput(runs: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            run["name"],
            number(run["tokens_per_s"], 1),
            number(run["ratio_to_plain"], unit="x"),
            number(run["requests_per_s"]),
            number(run["mat"]),
            str(run["completed"]),
            str(run["errors"]),
        ]
        for run in runs
    ]
    return table(["speculative", "tokens/s", "against plain", "requests/s", "MAT", "answers", "errors"], rows)


def _latencies(runs: Sequence[dict[str, Any]]) -> str:
    shares = ("p50", "p95", "p99")
    rows = [
        [
            run["name"],
            *[number(run[figure][share], 1) for figure in LATENCIES for share in shares],
            number(run["pause_ms"]["max"], 1),
        ]
        for run in runs
    ]
    head = [f"{name} {share}" for name in LATENCIES.values() for share in shares]
    return "Milliseconds:\n\n" + table(["speculative", *head, "max"], rows)


def _errors(runs: Sequence[dict[str, Any]]) -> str:
    rows = [
        [run["name"], kind, str(count), run["error_examples"][kind] or ""]
        for run in runs
        for kind, count in run["errors_by_kind"].items()
    ]
    return table(["speculative", "error", "requests", "first said"], rows) if rows else ""
