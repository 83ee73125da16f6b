"""Every mode gives plain's tokens in float32: greedy, and our own modes with equal seeds too."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from app.engine.engine import EngineConfig
from bench.benchmark import Benchmark
from bench.modes import parse_modes
from bench.plan import Plan
from racer.drafter import Policy
from tests.bench.support import FLAT, plan, write_questions
from tests.tiny import loaded

DRAFTED = ["draft_model", "draft_model:4", "hybrid", "hybrid:8"]
OURS = [*get_args(Policy), *(f"{policy}:6" for policy in get_args(Policy)), *DRAFTED]
CONFIG = EngineConfig(max_nodes=128, cost_curve=FLAT, draft_curve=((1, 0.001), (16, 0.001)))
PEERS = ["hf-plain", "hf-pld", "hf-assisted"]
PROMPTS = ("abcabcabcabc", "the cat and the cat and the", "Zq")
TOKENS = 40


def bench(tmp_path: Path, temperature: float) -> Iterator[Benchmark]:
    data = write_questions(tmp_path / "q.jsonl", "a")
    wanted: Plan = plan(data, ",".join([*OURS, *PEERS]), temperature=temperature, draft="tiny", seed=5)
    with Benchmark(wanted, loaded(), loaded(seed=1), CONFIG) as benchmark:
        yield benchmark


@pytest.fixture(scope="module")
def greedy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benchmark]:
    yield from bench(tmp_path_factory.mktemp("greedy"), 0.0)


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benchmark]:
    yield from bench(tmp_path_factory.mktemp("sampled"), 0.8)


@pytest.mark.parametrize("name", [*OURS, *PEERS])
def test_greedy_ids_equal_plain(greedy: Benchmark, name: str) -> None:
    _equal(greedy, name)


@pytest.mark.parametrize("name", OURS)
def test_sampled_ids_equal_plain_for_the_same_seed(sampled: Benchmark, name: str) -> None:
    _equal(sampled, name)


@cache
def _plain(benchmark: Benchmark) -> dict[str, tuple[int, ...]]:
    codec, mode = benchmark.engine.codec, parse_modes(["plain"])[0]
    return {text: benchmark._measure(mode, codec.encode(text), TOKENS, "x").tokens for text in PROMPTS}


def _equal(benchmark: Benchmark, name: str) -> None:
    mode = parse_modes([name])[-1]
    drafted = 0
    for text, expected in _plain(benchmark).items():
        measured = benchmark._measure(mode, benchmark.engine.codec.encode(text), TOKENS, "x")
        assert measured.tokens == expected
        drafted += measured.drafted or 0
    assert (drafted > 0) is (mode.policy is not None or mode.drafted is not None)
