"""Answers of one mode do not depend on the modes beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.calibration.run import question
from app.engine.correction import CsdConfig
from app.engine.request import GenerationRequest, SamplingParams, StopParams
from bench.errors import BenchError
from bench.quality.modes import parse
from bench.quality.run import QualityOutcome, Results, run
from bench.quality.tasks import Problem
from tests.engine.drafting import pair, similar

PROBLEMS = [Problem(f"p/{number}", "p", "open", text) for number, text in enumerate(("abc abc abc", "hello hello"))]


def outcomes(directory: Path, modes: str, table: list[tuple[int, int, float]]) -> dict[tuple[str, str], QualityOutcome]:
    with pair(similar(0.1), csd=CsdConfig(allowed=True, lambda_=1, tau=1e-9)) as engine:
        results = Results(directory, {})
        run(engine, PROBLEMS, parse(modes, draft=True), results, 60, table)
        results.close()
        return results.outcomes


def test_problems_that_do_not_fit_are_refused_or_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = Problem("p/long", "p", "open", "x" * 250)
    with pair(similar(0.1)) as engine:
        results = Results(tmp_path, {})
        with pytest.raises(BenchError, match="no problem fits the context of 256 tokens with --max-tokens 60"):
            run(engine, [long], parse("plain", draft=True), results, 60)
        for said in ("[1/2] p/0 plain", "2 answers of an earlier run"):
            run(engine, [long, *PROBLEMS], parse("plain", draft=True), results, 60)
            printed = capsys.readouterr().err
            assert "1 problems are too long" in printed and said in printed
        results.close()
        assert list(results.outcomes) == [(problem.key, "plain") for problem in PROBLEMS]
        assert all(outcome.cut == (outcome.tokens == 60) for outcome in results.outcomes.values())


def test_no_mode_learns_from_another(tmp_path: Path) -> None:
    with pair(similar(0.1), csd=CsdConfig(allowed=True)) as engine:
        results = Results(tmp_path / "table", {})
        run(engine, PROBLEMS, parse("sd", draft=True), results, 60)
        results.close()
        assert engine.corrections is not None
        table = [(draft, target, 2.0) for draft, target, _ in engine.corrections.memory.entries()]
    alone = outcomes(tmp_path / "alone", "csd", table)
    beside = outcomes(tmp_path / "beside", "sd,ocm,scg,racer,csd", table)
    for problem in PROBLEMS:
        mine, other = alone[problem.key, "csd"], beside[problem.key, "csd"]
        assert (mine.steps, mine.accepted, mine.rescues) == (other.steps, other.accepted, other.rescues)
    assert sum(alone[problem.key, "csd"].rescues for problem in PROBLEMS) > 0


def test_an_answer_of_code_ends_with_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair(similar(0.1)) as engine:
        prompt = question(engine, PROBLEMS[0].prompt)
        greedy = GenerationRequest(prompt, SamplingParams(temperature=0.0), StopParams(max_tokens=60))
        whole = engine.generate(greedy)
        monkeypatch.setattr("bench.quality.tasks.END_OF_BLOCK", whole.text[20:24])
        code = Problem("p/0", "p", "code", PROBLEMS[0].prompt, entry_point="f")
        results = Results(tmp_path, {})
        run(engine, [code], parse("sd", draft=True), results, 60)
        results.close()
    for outcome in results.outcomes.values():
        assert outcome.tokens < len(whole.token_ids) and not outcome.cut


def test_answers_at_once_are_those_one_by_one_and_share_the_time(tmp_path: Path) -> None:
    found = {}
    for together in (1, 2):
        with pair(similar(0.1)) as engine:
            results = Results(tmp_path / str(together), {})
            run(engine, PROBLEMS, parse("sd,hybrid", draft=True), results, 60, together=together, scored=together == 1)
            results.close()
            found[together] = results.outcomes
    assert found[1].keys() == found[2].keys()
    for key, alone in found[1].items():
        company = found[2][key]
        assert (company.tokens, company.cut, company.agreement) == (alone.tokens, alone.cut, alone.agreement)
        assert alone.log_probability is not None and company.log_probability is None
    for mode in ("plain", "sd", "hybrid"):
        rates = [found[2][problem.key, mode].tokens / found[2][problem.key, mode].seconds for problem in PROBLEMS]
        assert rates[0] == pytest.approx(rates[1])
