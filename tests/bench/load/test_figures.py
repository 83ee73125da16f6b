"""Figures of samples that are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError
from bench.load.figures import figures, percentiles
from bench.load.plan import LoadPlan, base_url, parse_ways
from bench.load.report import as_markdown, build
from bench.load.run import make_jobs
from bench.questions import Question
from tests.bench.load.support import PLAIN, sample


def load_plan(*ways: str, **changes: Any) -> LoadPlan:
    return LoadPlan("http://x", (Path("q.jsonl"),), parse_ways(ways or ("{}",)), **changes)


def test_percentiles() -> None:
    assert percentiles([number / 1000 for number in range(101)]) == pytest.approx({"p50": 50, "p95": 95, "p99": 99})
    assert percentiles([0.002, 0.001]) == pytest.approx({"p50": 1.5, "p95": 1.95, "p99": 1.99})
    assert percentiles([0.004]) == pytest.approx({"p50": 4, "p95": 4, "p99": 4})
    assert percentiles([]) == {"p50": None, "p95": None, "p99": None}


def test_figures_of_answers_and_failures() -> None:
    samples = [
        sample(0),
        sample(1, block=1, completion_tokens=1, decode=0.0, pause=0.0, ttft=0.4, e2e=0.4, speculation=None),
        sample(2, block=1, e2e=9.0, ttft=9.0, completion_tokens=1000, error="http_429", said="full"),
        sample(3, block=1, e2e=9.0, error="http_429", said="still full"),
    ]
    found = figures(samples, {0: 1.0, 1: 3.0})
    assert (found["requests"], found["completed"], found["errors"]) == (4, 2, 2)
    assert found["errors_by_kind"] == {"http_429": 2}
    assert found["error_examples"] == {"http_429": "full"}
    assert found["tokens_per_s"] == 6 / 4
    assert found["tokens_per_s_by_block"] == [5.0, 1 / 3]
    assert found["mat"] == 2.0
    assert found["draft_acceptance_rate"] == 0.25
    assert found["tpot_ms"]["p99"] == pytest.approx(200.0)  # an answer of one token has none
    assert found["pause_ms"] == pytest.approx({"p50": 300.0, "p95": 300.0, "p99": 300.0, "max": 300.0})  # nor a pause
    assert found["e2e_ms"]["p50"] == pytest.approx(700.0)


def test_nothing_measured() -> None:
    found = figures([], {})
    assert (found["tokens_per_s"], found["mat"], found["errors"], found["pause_ms"]["max"]) == (None, None, 0, None)


def test_ways_are_compared_with_plain() -> None:
    plan = load_plan("{}", PLAIN)
    samples = [
        *(sample(number) for number in range(4)),
        *(sample(number, "drafter=none", digest="a" if number else "b", completion_tokens=4) for number in range(4)),
    ]
    report = build(plan, 4, samples, {"default": {0: 2.0}, "drafter=none": {0: 4.0}}, {}, "tiny")
    first, plain = report["runs"]
    assert report["status"] == "complete"
    assert report["tokens_per_s"] == first["tokens_per_s"] == 10.0
    assert (first["ratio_to_plain"], plain["ratio_to_plain"]) == (2.5, 1.0)
    assert (first["equal_to_plain"], plain["equal_to_plain"]) == (0.75, 1.0)
    assert build(plan, 5, samples, {}, {}, None)["status"] == "partial"
    assert build(load_plan(), 4, samples[:4], {"default": {0: 2.0}}, {}, None)["ratio_to_plain"] is None
    assert "| default | 10.0 | 2.50x |" in as_markdown(report)


def test_an_error_cannot_break_the_table() -> None:
    report = build(load_plan(), 1, [sample(0, error="http_500", said="a | b\nc")], {"default": {0: 1.0}}, {}, None)
    assert "| default | http_500 | 1 | a \\| b c |" in as_markdown(report).splitlines()


def test_requests_begin_again_where_the_questions_end() -> None:
    questions = [Question(f"f/{number}", "qa", (f"text {number}",)) for number in range(3)]
    assert [job.question for job in make_jobs(questions, 5)] == ["f/0", "f/1", "f/2", "f/0", "f/1"]
    assert [job.number for job in make_jobs(questions, 5)] == [0, 1, 2, 3, 4]
    assert len(make_jobs(questions, None)) == 3


def test_blocks() -> None:
    assert load_plan().block_size(100) == 100  # nothing to compare with
    assert load_plan("{}", PLAIN).block_size(100) == 25
    assert load_plan("{}", PLAIN, concurrency=32).block_size(100) == 64
    assert load_plan("{}", PLAIN, block=3).block_size(100) == 3


def test_names_of_ways() -> None:
    ways = parse_ways(["{}", PLAIN, '{"drafter": "racer", "max_nodes": 8}'])
    assert [(way.name, way.plain) for way in ways] == [
        ("default", False),
        ("drafter=none", True),
        ("drafter=racer max_nodes=8", False),
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null"])
def test_a_way_that_is_no_object(text: str) -> None:
    with pytest.raises(BenchError, match="--speculative"):
        parse_ways([text])


def test_a_way_given_twice() -> None:
    with pytest.raises(BenchError, match="twice"):
        parse_ways(["{}", "{ }"])


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_an_address_may_name_the_api(url: str) -> None:
    assert base_url(url) == "http://h:1"


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "http://", "http://user:pw@h:1"])
def test_an_address_that_cannot_be(url: str) -> None:
    with pytest.raises(BenchError, match="--url"):
        base_url(url)
