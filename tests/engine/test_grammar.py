"""Answers held to a grammar: the same with every drafter, valid whenever they end, inside accepted runs too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.engine.calls import Completion
from app.engine.correction import CsdConfig
from app.engine.engine import Engine
from app.engine.events import EndReason, Event, Failed, Finished
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.text.errors import GrammarError
from app.text.tool_calls import CallFormat, CallParser
from app.text.tool_grammar import Tool, call_grammar
from bench.recorder import Recorder
from tests.engine.drafting import CHEAP, FLAT
from tests.structured import json_engine, json_loaded
from tests.waiting import wait_until

GREEDY, SEEDED = SamplingParams(0.0), SamplingParams(0.9, top_p=0.95, seed=11)
PLAIN = SpeculationParams("none")
DRAFTERS = [
    SpeculationParams("racer", max_nodes=16, fixed_budget=True),
    SpeculationParams("hybrid", max_nodes=16, fixed_budget=True),
    SpeculationParams("draft_model", max_nodes=8, fixed_budget=True),
    SpeculationParams("racer"),
]
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "y": {"type": "boolean"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "array", "items": POINT, "minItems": 2, "maxItems": 4},
    {
        "type": "object",
        "properties": {"word": {"type": "string", "maxLength": 12}, "k": {"enum": ["ab", "abab", None]}},
        "additionalProperties": False,
    },
    {"enum": ["abababab12", "abababab12abab", 12, True]},
    {"type": "array", "items": {"type": "string", "pattern": "^(ab|12){1,6}$"}, "minItems": 4, "maxItems": 4},
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with json_engine(
        draft=json_loaded(1), csd=CsdConfig(allowed=True), cost_curve=FLAT, draft_curve=CHEAP, max_running=4
    ) as engine:
        yield engine


def request(engine: Engine, schema: dict[str, Any], prompt: str = "a list: ab, ab, ab", **changes: Any) -> GenerationRequest:
    grammar = engine.codec.grammars.json_schema(schema)
    base = GenerationRequest(tuple(engine.codec.encode(prompt)), GREEDY, StopParams(150), PLAIN, grammar=grammar)
    return replace(base, **changes)


def check(done: Completion) -> None:
    if done.finished.reason == "stop":
        json.loads(done.text)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_equal_to_plain_with_every_drafter(engine: Engine, schema: dict[str, Any], sampling: SamplingParams) -> None:
    plain = engine.generate(request(engine, schema, sampling=sampling))
    assert plain.finished.reason == "stop"
    check(plain)
    for speculation in DRAFTERS:
        done = engine.generate(request(engine, schema, sampling=sampling, speculation=speculation))
        assert done.token_ids == plain.token_ids
        assert done.finished.reason == "stop"


def test_drafts_are_accepted(engine: Engine) -> None:
    done = engine.generate(request(engine, SCHEMAS[3], speculation=DRAFTERS[0]))
    stats = done.finished.stats
    assert stats.num_accepted_tokens > 5
    assert max(length for length, count in enumerate(stats.acceptance_histogram) if count) > 1


def test_what_the_grammar_forces_is_drafted(engine: Engine) -> None:
    keys = {name: {"type": "boolean"} for name in ("first_key", "another_key", "yet_another", "the_last_one")}
    schema = {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}
    plain = engine.generate(request(engine, schema))
    done = engine.generate(request(engine, schema, speculation=DRAFTERS[0]))
    assert done.token_ids == plain.token_ids
    stats = done.finished.stats
    assert stats.tokens_by_source["grammar"] > stats.emitted / 2
    assert stats.emitted == stats.num_accepted_tokens + stats.num_steps + 1
    assert stats.mean_acceptance_length > 3


@pytest.mark.slow
def test_in_company_as_alone(engine: Engine) -> None:
    requests = [
        request(
            engine,
            schema,
            prompt=f"say {number}",
            sampling=replace(SEEDED, seed=number),
            speculation=DRAFTERS[number % 4],
            tenant="ab"[number % 2],
        )
        for number in range(12)
        for schema in [SCHEMAS[number % 4]]
    ]
    together = engine.generate_all(requests)
    for asked, done in zip(requests, together, strict=True):
        assert done.token_ids == engine.generate(replace(asked, speculation=PLAIN)).token_ids
        check(done)


@pytest.mark.parametrize("rule", ["scg", "static"])
def test_rescued_tokens_are_within_the_grammar(engine: Engine, rule: str) -> None:
    eager = SpeculationParams("hybrid", "csd", max_nodes=12, fixed_budget=True, rule=rule, tau=1e-12)  # type: ignore[arg-type]
    rescues = 0
    for seed in range(6):
        schema = SCHEMAS[seed % len(SCHEMAS)]
        done = engine.generate(request(engine, schema, sampling=replace(SEEDED, seed=seed), speculation=eager))
        assert done.finished.reason == "stop"
        check(done)
        rescues += done.finished.stats.rescues
    assert rescues > 0


def test_the_budget_cuts_the_same_answer(engine: Engine) -> None:
    whole = engine.generate(request(engine, SCHEMAS[0])).token_ids
    for limit in (1, 2, 5, 9):
        for speculation in (PLAIN, DRAFTERS[0]):
            done = engine.generate(request(engine, SCHEMAS[0], stopping=StopParams(limit), speculation=speculation))
            assert done.token_ids == whole[:limit]
            assert done.finished.reason == "length"


def test_a_complete_answer_ends_whatever_else_is_asked(engine: Engine) -> None:
    for stopping in (StopParams(60, min_tokens=40), StopParams(60, ignore_eos=True)):
        for speculation in (PLAIN, DRAFTERS[0]):
            done = engine.generate(request(engine, {"const": 12}, stopping=stopping, speculation=speculation))
            assert done.finished.reason == "stop"
            assert json.loads(done.text) == 12


@pytest.mark.slow
def test_required_calls(engine: Engine) -> None:
    form = CallFormat("tagged")
    grammar = call_grammar(engine.codec.grammars, form, [Tool("f", POINT, strict=True)], required=True, most=2)
    plain, fast = (
        engine.generate(request(engine, POINT, grammar=grammar, speculation=speculation))
        for speculation in (PLAIN, DRAFTERS[1])
    )
    assert plain.token_ids == fast.token_ids
    parser = CallParser(form, frozenset({"f"}))
    parser.push(plain.text)
    _, calls = parser.end()
    assert 1 <= len(calls) <= 2
    assert json.loads(calls[0].arguments).keys() == {"x", "y"}


class Ends(Recorder):
    """Hears why generations ended."""

    def __init__(self, reasons: list[EndReason]) -> None:
        super().__init__()
        self.reasons = reasons

    def finished(self, reason: EndReason, seconds: float, prompt_tokens: int, completion_tokens: int) -> None:
        self.reasons.append(reason)


def test_an_answer_that_cannot_go_on_fails_alone(engine: Engine) -> None:
    ended: list[EndReason] = []
    engine.observer = Ends(ended)
    dead_end = request(engine, {"const": "a" * 40 + "東"}, speculation=DRAFTERS[0])
    events: list[Event] = []
    handle = engine.submit(dead_end, events.append)
    others = [request(engine, schema, sampling=SEEDED, speculation=DRAFTERS[0]) for schema in SCHEMAS[:3]]
    together = engine.generate_all(others)
    wait_until(lambda: bool(events) and isinstance(events[-1], Failed | Finished))
    handle.cancel()
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, GrammarError)
    assert sorted(ended) == ["invalid", "stop", "stop", "stop"]  # the request's own fault, not the server's
    engine.observer = None
    for asked, done in zip(others, together, strict=True):
        assert done.token_ids == engine.generate(replace(asked, speculation=PLAIN)).token_ids
