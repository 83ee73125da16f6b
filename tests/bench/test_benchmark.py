"""The run itself, on a tiny model: interleaving, resuming, turns, and what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.engine.engine import EngineConfig
from app.engine.request import GenerationRequest, SamplingParams, StopParams
from bench.benchmark import Benchmark, BenchOutcome, engine_config
from bench.engine_runner import EngineRunner
from bench.modes import Mode
from bench.plan import Plan
from bench.questions import read_questions, spread
from bench.result import Measurement, Result
from bench.store import ResultStore
from tests.bench.support import FLAT, plan, write_questions
from tests.tiny import loaded, tiny_engine

CONFIG = EngineConfig(max_nodes=128, warm_start=False, cost_curve=FLAT)


class Calls:
    """Records every measurement, and can interrupt one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, interrupt_at: int | None = None) -> None:
        self.made: list[tuple[str, int, str]] = []
        measure = Benchmark._measure

        def recorded(benchmark: Benchmark, mode: Mode, prompt: Sequence[int], tokens: int, tenant: str) -> Measurement:
            if len(self.made) == interrupt_at:
                raise KeyboardInterrupt
            self.made.append((mode.name, len(prompt), tenant))
            return measure(benchmark, mode, prompt, tokens, tenant)

        monkeypatch.setattr(Benchmark, "_measure", recorded)


def run(wanted: Plan, directory: Path, config: EngineConfig = CONFIG) -> tuple[BenchOutcome, list[Result]]:
    """The outcome, and what was newly measured."""
    questions = read_questions(wanted.data)
    outcome = BenchOutcome(spread(questions, wanted.limit))
    store = ResultStore(directory, wanted.settings())
    heard: list[Result] = []
    try:
        with Benchmark(wanted, loaded(), config=config) as benchmark:
            benchmark.run(outcome, questions, store, heard.append)
    finally:
        store.close()
    return outcome, heard


def test_modes_are_interleaved_and_their_order_rotates(tmp_path: Path) -> None:
    wanted = plan(write_questions(tmp_path / "q.jsonl", "abc"), "plain,paper:8,hf-plain")
    _, heard = run(wanted, tmp_path / "out")
    assert [(result.question, result.mode, result.place) for result in heard] == [
        ("q/1", "plain", 0),
        ("q/1", "paper:8", 1),
        ("q/1", "hf-plain", 2),
        ("q/2", "paper:8", 0),
        ("q/2", "hf-plain", 1),
        ("q/2", "plain", 2),
        ("q/3", "hf-plain", 0),
        ("q/3", "plain", 1),
        ("q/3", "paper:8", 2),
    ]


def test_the_warm_up_is_a_question_that_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_questions(tmp_path / "q.jsonl", "aa")
    data.write_text(data.read_text().replace("abcabcabcab2", "longer than the other"))
    calls = Calls(monkeypatch)
    run(plan(data, limit=1), tmp_path / "out")
    lengths = [length for _, length, _ in calls.made]
    assert lengths[:2] == [len("longer than the other")] * 2
    assert lengths[2:] == [len("abcabcabcab1")] * 2
    assert [tenant for _, _, tenant in calls.made] == ["warm-up", "warm-up", "plain", "paper:8"]


def test_an_interrupted_run_goes_on_without_repeating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = plan(write_questions(tmp_path / "q.jsonl", "abc"), "plain,paper:8")
    with monkeypatch.context() as patch:
        calls = Calls(patch, interrupt_at=5)  # two of warm-up, two of the first question, one of the second
        with pytest.raises(KeyboardInterrupt):
            run(wanted, tmp_path / "out")
    assert len(calls.made) == 5
    with monkeypatch.context() as patch:
        calls = Calls(patch)
        _, heard = run(wanted, tmp_path / "out")
        counted = [mode for mode, _, tenant in calls.made if tenant != "warm-up"]
        assert counted == [result.mode for result in heard] == ["plain", "plain", "paper:8"]
    with monkeypatch.context() as patch:
        calls = Calls(patch)
        assert run(wanted, tmp_path / "out")[1] == []
        assert calls.made == []


def test_later_turns_follow_plains_answer_in_every_mode(tmp_path: Path) -> None:
    wanted = plan(write_questions(tmp_path / "q.jsonl", "a", turns=("abcab", "cabca")), "plain,paper:8,hf-plain", turns=True)
    _, heard = run(wanted, tmp_path / "out")
    assert [(result.turn, result.mode) for result in heard] == [
        (turn, mode) for turn in (0, 1) for mode in ("plain", "paper:8", "hf-plain")
    ]
    assert len({result.prompt_tokens for result in heard if result.turn == 1}) == 1
    answer = loaded().codec.decode(heard[0].measured.tokens)
    assert heard[0].prompt_tokens == len("abcab1")
    assert heard[3].prompt_tokens == len(loaded().codec.encode(f"abcab1\n\n{answer}\n\ncabca1"))


def test_a_question_too_long_for_the_context_is_left_out(tmp_path: Path) -> None:
    data = write_questions(tmp_path / "q.jsonl", "ab")
    data.write_text(data.read_text().replace("abcabcabcab1", "x" * 300))
    outcome, heard = run(plan(data), tmp_path / "out")
    assert outcome.skipped == ["q/1"]
    assert {result.question for result in heard} == {"q/2"}


@pytest.mark.parametrize("warm", [False, True])
def test_state_outlives_a_question_only_when_warm(tmp_path: Path, warm: bool) -> None:
    """The same prompt twice: a cold session drafts the same both times."""
    data = write_questions(tmp_path / "q.jsonl", "aa")
    data.write_text(data.read_text().replace("abcabcabcab2", "abcabcabcab1"))
    config = EngineConfig(max_nodes=128, warm_start=warm, cost_curve=FLAT)
    _, heard = run(plan(data, "plain,copy_logit:16", warm=warm), tmp_path / "out", config)
    drafted = [result.measured.drafted for result in heard if result.mode == "copy_logit:16"]
    assert (drafted[0] == drafted[1]) is not warm


def test_what_a_mode_learns_is_its_own(tmp_path: Path) -> None:
    """The same steps whatever runs beside it."""
    data = write_questions(tmp_path / "q.jsonl", "ab")
    curve = ((1, 0.01), (4, 0.011), (128, 0.2))
    config = EngineConfig(max_nodes=128, warm_start=False, cost_curve=curve, prior_rows=0)

    def steps(modes: str) -> list[tuple[int | None, tuple[int, ...]]]:
        _, heard = run(plan(data, modes, max_tokens=30), tmp_path / modes, config)
        return [(one.measured.drafted, one.measured.histogram) for one in heard if one.mode == "auto"]

    assert steps("plain,auto:64,auto") == steps("plain,auto")


def test_prior_rows_are_as_many_as_the_plan_says(tmp_path: Path) -> None:
    data = write_questions(tmp_path / "q.jsonl", "a")
    assert engine_config(plan(data)).prior_rows == EngineConfig().prior_rows
    assert engine_config(plan(data, prior_rows=0)).prior_rows == 0
    assert engine_config(plan(data, prior_rows=500)).prior_rows == 500
    assert plan(data).settings() != plan(data, prior_rows=0).settings()


@pytest.mark.parametrize("warm", [False, True])
def test_rows_outlive_a_question_where_the_plan_says_so(tmp_path: Path, warm: bool) -> None:
    data = write_questions(tmp_path / "q.jsonl", "a")
    config = engine_config(plan(data, "plain,paper:300,auto:16", warm=warm))
    assert (config.warm_start, config.max_nodes, config.max_running) == (warm, 300, 1)
    assert engine_config(plan(data)).max_nodes == 128


def test_measurements_add_up(tmp_path: Path) -> None:
    _, heard = run(plan(write_questions(tmp_path / "q.jsonl", "ab"), "plain,paper:8,hf-pld"), tmp_path / "out")
    for one in heard:
        measured: Any = one.measured
        assert 0 <= measured.decode_seconds <= measured.seconds
        if one.mode == "hf-pld":
            assert measured.step_tokens == len(measured.tokens)
            assert measured.steps <= len(measured.tokens)
            continue
        assert measured.step_tokens == len(measured.tokens) - 1
        assert sum(measured.histogram) == measured.steps == sum(steps for steps, _ in measured.nodes.values())
        assert sum(measured.sources.values()) == len(measured.tokens)
        assert sum(measured.phase_seconds.values()) <= measured.decode_seconds


def test_answers_are_sampled_as_the_plan_says() -> None:
    prompt = tuple(range(5, 25))
    with tiny_engine(eos=frozenset(), cost_curve=FLAT) as engine:
        found = {}
        for temperature, seed in ((0.0, 1), (1.5, 1), (1.5, 2)):
            runner = EngineRunner(engine, temperature=temperature, seed=seed)
            found[temperature, seed] = runner.run(Mode("auto", policy="auto"), prompt, 20, "auto").tokens
            asked = GenerationRequest(prompt, SamplingParams(temperature=temperature, seed=seed), StopParams(max_tokens=20))
            assert found[temperature, seed] == engine.generate(asked).token_ids
        assert len(set(found.values())) == 3
