"""Penalties, bias, least length, log-probabilities: the same tokens with speculation as without, and what they should be."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from app.engine.calls import Completion
from app.engine.correction import CsdConfig
from app.engine.engine import Engine
from app.engine.events import Delta
from app.engine.forward.target import PackedTarget
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.engine.sampling.logits_processor import LogitsProcessor
from tests.engine.drafting import CHEAP, FLAT, pair, similar
from tests.models import VOCABULARY, build
from tests.tiny import loaded, tiny_engine

PLAIN = SpeculationParams("none")
DRAFTED = [
    SpeculationParams("racer", max_nodes=24, fixed_budget=True),
    SpeculationParams("hybrid"),
    SpeculationParams("draft_model"),
]
PROMPT = tuple(range(10, 22)) * 2
LOOP = (5, 6, 7) * 6


def run(
    engine: Engine, speculation: SpeculationParams, sampling: SamplingParams, stopping: StopParams | None = None
) -> Completion:
    request = GenerationRequest(PROMPT, sampling, stopping or StopParams(max_tokens=60), speculation)
    return engine.generate(request)


@pytest.fixture(scope="module")
def engine():
    with pair(similar()) as engine:
        yield engine


RULES = {
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.7},
    "negative": {"frequency_penalty": -0.5, "presence_penalty": -1.0},
    "repetition": {"repetition_penalty": 1.3},
    "encouraged": {"repetition_penalty": 0.8},
    "bias": {"logit_bias": ((20, 3.0), (30, 2.5), (40, -100.0))},
    "all": {"presence_penalty": 0.3, "frequency_penalty": 0.2, "repetition_penalty": 1.1, "logit_bias": ((9, 1.0),)},
    "min_p": {"min_p": 0.05, "top_k": 20},
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("base", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 4}], ids=["greedy", "sampled"])
def test_rules_hold_inside_accepted_runs(engine: Engine, name: str, base: dict[str, float]):
    sampling = SamplingParams(**base, **RULES[name])  # type: ignore[arg-type]
    plain = run(engine, PLAIN, sampling)
    for speculation in DRAFTED:
        done = run(engine, speculation, sampling)
        assert done.token_ids == plain.token_ids
        assert done.text == plain.text
    if name == "bias":
        assert 40 not in plain.token_ids


def test_drafts_are_accepted_under_rules(engine: Engine):
    """A banned token makes the model loop elsewhere, and the loop is drafted."""
    done = run(engine, DRAFTED[0], SamplingParams(0.0, logit_bias=((40, -100.0), (41, 1.0))))
    assert done.finished.stats.num_accepted_tokens > 10


def rules(
    sampling: SamplingParams, *, prompt: tuple[int, ...] = (1, 2), min_tokens: int = 0, ends=frozenset({0})
) -> LogitsProcessor:
    request = GenerationRequest(prompt, sampling, StopParams(min_tokens=min_tokens))
    assert LogitsProcessor.needed(request)
    return LogitsProcessor(request, ends, 6, torch.device("cpu"))


def test_penalties_by_hand():
    row = torch.tensor([2.0, -1.0, 4.0, 0.5, 1.0, -2.0])
    frequency = rules(SamplingParams(frequency_penalty=0.5, presence_penalty=0.25))
    frequency.accept([4, 4, 3])
    assert frequency.apply(row, [3, 5]).tolist() == pytest.approx([2.0, -1.0, 4.0, 0.5 - 1.25, 1.0 - 1.25, -2.0 - 0.75])
    assert frequency.apply(row, []).tolist() == pytest.approx([2.0, -1.0, 4.0, 0.5 - 0.75, 1.0 - 1.25, -2.0])  # no path is kept
    repetition = rules(SamplingParams(repetition_penalty=2.0))
    repetition.accept([3])
    assert repetition.apply(row, [5]).tolist() == pytest.approx([2.0, -2.0, 2.0, 0.25, 1.0, -4.0])
    bias = rules(SamplingParams(logit_bias=((2, -100.0), (4, 1.5))))
    assert bias.apply(row, []).tolist() == pytest.approx([2.0, -1.0, -96.0, 0.5, 2.5, -2.0])
    assert bias.forbids(2) and not bias.forbids(4)
    assert row.tolist() == [2.0, -1.0, 4.0, 0.5, 1.0, -2.0]


def test_the_end_is_kept_away_for_as_long_as_asked():
    least = rules(SamplingParams(), min_tokens=3)
    least.accept([4])
    row = torch.zeros(6)
    assert least.apply(row, [5])[0] == -math.inf and least.forbids(0)
    assert least.apply(row, [5, 5])[0] == 0.0 and not least.forbids(0)


class Fixed:
    """A grammar of one text: the answer is these tokens, then the end."""

    def __init__(self, tokens: tuple[int, ...], end: int) -> None:
        self.tokens, self.end = tokens, end

    def matcher(self) -> Fixed.Matcher:
        return Fixed.Matcher(self)

    class Matcher:
        def __init__(self, grammar: Fixed) -> None:
            self.grammar, self.accepted = grammar, 0

        def allowed(self, path):
            mask = np.zeros(VOCABULARY, np.bool_)
            place = self.accepted + len(path)
            tokens = self.grammar.tokens
            mask[tokens[place] if place < len(tokens) else self.grammar.end] = True
            return mask

        def accept(self, tokens) -> None:
            self.accepted += len(tokens)

        def forced(self) -> list[int]:
            return []


@pytest.mark.parametrize("sampling", [SamplingParams(0.0), SamplingParams(1.0, seed=2)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("min_tokens", [0, 40])
def test_a_grammar_decides_and_nothing_else(sampling: SamplingParams, ignore_eos: bool, min_tokens: int):
    grammar = Fixed(LOOP, 2)
    with tiny_engine(max_nodes=24, cost_curve=FLAT) as engine:
        for speculation in (PLAIN, SpeculationParams("racer")):
            stopping = StopParams(50, ignore_eos=ignore_eos, min_tokens=min_tokens)
            done = engine.generate(GenerationRequest(PROMPT, sampling, stopping, speculation, grammar=grammar))
            assert done.token_ids == (*LOOP, 2)
            assert done.finished.reason == "stop"
        assert done.finished.stats.num_accepted_tokens > 5


def test_csd_rescues_nothing_that_a_rule_forbids():
    eager = SpeculationParams("draft_model", "csd", max_nodes=7, fixed_budget=True, rule="scg", tau=1e-12)
    settings: dict[str, Any] = {"csd": CsdConfig(allowed=True), "cost_curve": FLAT, "draft_curve": CHEAP}
    with tiny_engine(eos=frozenset(), draft=loaded(seed=1), **settings) as engine:
        free = engine.generate(GenerationRequest(PROMPT, SamplingParams(0.0), StopParams(60), eager))
        assert free.finished.stats.rescues > 5
        common = [token for token, _ in Counter(free.token_ids).most_common(8)]
        banned = SamplingParams(0.0, logit_bias=tuple((token, -100.0) for token in sorted(common)))
        done = engine.generate(GenerationRequest(PROMPT, banned, StopParams(60), eager))
        assert done.finished.stats.rescues > 0
        assert not set(done.token_ids) & set(common)
        fixed = engine.generate(GenerationRequest(PROMPT, SamplingParams(0.0), StopParams(60), eager, grammar=Fixed(LOOP, 2)))
        assert fixed.token_ids[: len(LOOP)] == LOOP


def test_neither_eos_nor_a_stop_ends_an_answer_too_early():
    with tiny_engine(eos=frozenset(), cost_curve=FLAT) as engine:
        whole = engine.generate(GenerationRequest(PROMPT, SamplingParams(0.0), StopParams(30), PLAIN))
    eos = whole.token_ids[4]
    with tiny_engine(eos=frozenset({eos}), cost_curve=FLAT) as engine:
        for speculation in (PLAIN, SpeculationParams("racer")):
            short = run(engine, speculation, SamplingParams(0.0))
            assert short.token_ids == whole.token_ids[: whole.token_ids.index(eos) + 1]
            long = run(engine, speculation, SamplingParams(0.0), StopParams(40, min_tokens=20))
            assert len(long.token_ids) > 20
            assert eos not in long.token_ids[:20]
    with tiny_engine(eos=frozenset(), cost_curve=FLAT) as engine:
        stop = engine.codec.decode([whole.token_ids[3]])
        for speculation in (PLAIN, SpeculationParams("racer")):
            done = run(engine, speculation, SamplingParams(0.0), StopParams(30, (stop,), min_tokens=10))
            assert len(done.token_ids) > 10
            assert engine.codec.decode(whole.token_ids[:10]) in done.text


def scored(engine: Engine, speculation: SpeculationParams, top: int, **parts: object) -> tuple[list, list, list]:
    request = GenerationRequest(PROMPT, SamplingParams(0.0), StopParams(40), speculation, logprobs=top, **parts)  # type: ignore[arg-type]
    tokens: list[int] = []
    scores: list[Any] = []
    prompt: list[Any] = []
    for event in engine.stream(request):
        if isinstance(event, Delta):
            assert len(event.logprobs) == len(event.token_ids)
            tokens += event.token_ids
            scores += event.logprobs
            prompt += event.prompt_logprobs
    return tokens, scores, prompt


@pytest.mark.parametrize("speculation", [PLAIN, DRAFTED[0]], ids=["plain", "racer"])
@pytest.mark.parametrize("chunk", [256, 7])
def test_logprobs_are_those_of_a_fresh_pass(speculation: SpeculationParams, chunk: int):
    with tiny_engine(eos=frozenset(), cost_curve=FLAT, prefill_chunk=chunk) as engine:
        tokens, scores, prompt = scored(engine, speculation, 3, prompt_logprobs=True)
    logits = PackedTarget(build("llama", 0)).native_logits([*PROMPT, *tokens])
    truth = torch.log_softmax(logits.float(), -1)
    assert prompt[0] is None and len(prompt) == len(PROMPT)
    for place, score in enumerate([*prompt[1:], *scores], start=1):
        token = [*PROMPT, *tokens][place]
        assert score.logprob == pytest.approx(float(truth[place - 1, token]), abs=1e-4)
        assert [value for _, value in score.top] == pytest.approx(torch.topk(truth[place - 1], 3).values.tolist(), abs=1e-4)
        assert score.top[0][1] >= score.top[1][1] >= score.top[2][1]


def test_logprobs_are_cut_with_the_answer():
    with tiny_engine(eos=frozenset(), cost_curve=FLAT) as engine:
        for limit in range(1, 12):
            request = GenerationRequest(PROMPT, SamplingParams(0.0), StopParams(limit), DRAFTED[0], logprobs=0)
            deltas = [event for event in engine.stream(request) if isinstance(event, Delta)]
            assert sum(len(delta.logprobs) for delta in deltas) == limit


def test_no_row_is_copied_for_a_session_that_asks_no_logprobs(monkeypatch: pytest.MonkeyPatch):
    for module in ("decoder", "prefill"):
        monkeypatch.setattr(f"app.engine.{module}.token_logprobs", lambda *_: pytest.fail("rows of logits were copied"))
    with tiny_engine(eos=frozenset(), cost_curve=FLAT) as engine:
        engine.generate(GenerationRequest(PROMPT, SamplingParams(0.0), StopParams(9), DRAFTED[0]))
