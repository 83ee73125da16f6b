"""Schemas that are cheap to send and dear to compile: refused early, bounded in memory, and in the time of one request."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.text import grammar_compiler
from app.text.errors import GrammarError, GrammarTooExpensive
from app.text.grammar_compiler import BYTES_PER_SYMBOL, SIZES, GrammarCache, GrammarCompiler
from app.text.schema_errors import MAX_PATTERNS, MAX_PROPERTIES
from app.text.tool_calls import CallFormat
from app.text.tool_grammar import Tool, ToolSchemaError, call_grammar
from tests.api.support import CHAT, COMPLETIONS, HELLO, check_error, client_of
from tests.synthetic import SyntheticCodec, SyntheticEngine

SECONDS = 10.0  # of a processor; what is shown here took from 2 to 20 times as long before it was bounded, or had no end


@pytest.fixture
def client() -> Iterator[TestClient]:
    with client_of(SyntheticEngine) as client:
        yield client


def either(number: int, ways: int = 2) -> dict[str, Any]:
    names = [f"a{number}{way}" for way in range(ways)]
    return {"anyOf": [{"type": "object", "properties": {name: {"type": "string"}}, "required": [name]} for name in names]}


def properties(count: int, tag: str = "f") -> dict[str, Any]:
    return {"type": "object", "properties": {f"{tag}{number}": {"type": "string"} for number in range(count)}}


def patterns(count: int) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {f"^k{number:04}$": {"type": "string"} for number in range(count)}}


COSTLY: dict[str, dict[str, Any]] = {
    "branches that multiply": {"allOf": [either(number) for number in range(10)]},
    "more of them": {"allOf": [either(number) for number in range(40)]},
    "wider ones": {"allOf": [either(number, 8) for number in range(10)]},
    "through references": {
        "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, either(n)]} for n in range(20)} | {"d20": properties(1)},
        "$ref": "#/$defs/d0",
    },
    "patterns": patterns(MAX_PATTERNS),
    "too many patterns": patterns(400),
    "patterns in many objects": {"properties": {f"f{number}": patterns(40) for number in range(20)}},
    "properties": properties(MAX_PROPERTIES),
    "too many properties": properties(4000),
    "properties that come together": {"allOf": [properties(900, tag) for tag in "abcd"]},
    "properties that come together by reference": {
        "$defs": {"a": properties(900, "a"), "b": {"$ref": "#/$defs/a", **properties(900, "b")}},
        "$ref": "#/$defs/b",
    },
    "properties in every branch": {**properties(1000), "anyOf": [{"required": [f"f{number}"]} for number in range(40)]},
}


@pytest.mark.parametrize("name", COSTLY)
def test_no_schema_takes_long(name: str) -> None:
    compiler = GrammarCompiler(SyntheticCodec())
    started = time.thread_time()
    with contextlib.suppress(GrammarError):
        compiler.json_schema(COSTLY[name])
    assert time.thread_time() - started < SECONDS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("more of them", "too large or too complex"),
        ("through references", "too large or too complex"),
        ("too many patterns", f"more than {MAX_PATTERNS} patternProperties"),
        ("patterns in many objects", f"more than {MAX_PATTERNS} patternProperties"),
        ("too many properties", f"more than {MAX_PROPERTIES} properties"),
        ("properties that come together", f"more than {MAX_PROPERTIES} properties"),
        ("properties that come together by reference", f"more than {MAX_PROPERTIES} properties"),
    ],
)
def test_the_reason_is_told_and_names_the_field(name: str, words: str, client: TestClient) -> None:
    schema = {"name": "x", "schema": COSTLY[name]}
    form = {"type": "json_schema", "json_schema": schema}
    reply = client.post(COMPLETIONS, json={"prompt": "a", "response_format": form})
    error = check_error(reply, 400, "response_format.json_schema.schema", "invalid_schema")
    assert words in error["message"]


def test_what_people_send_is_within_the_bounds() -> None:
    compiler = GrammarCompiler(SyntheticCodec())
    for schema in (
        {**properties(500), "additionalProperties": False},
        {"type": "object", "properties": {f"g{number}": properties(20) for number in range(100)}},
        {"enum": [f"value {number}" for number in range(3000)]},
        {"allOf": [properties(50, "a"), properties(50, "b"), either(1, 6), either(2, 6)]},
        patterns(8),
    ):
        compiler.json_schema(schema)


# -- one request ---------------------------------------------------------------------------------------------------------


def test_the_schemas_of_one_request_have_a_time_together(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GrammarCompiler(SyntheticCodec())
    kept = compiler.json_schema({"const": 0})
    monkeypatch.setattr(grammar_compiler, "COMPILE_SECONDS", 1e-9)
    for _ in range(2):
        with compiler.one_request():
            assert compiler.json_schema({"const": 0}) is kept  # costs nothing
            compiler.json_schema({"const": time.monotonic()})  # the one that uses the time up is ended
            with pytest.raises(GrammarTooExpensive):
                compiler.json_schema({"const": time.monotonic()})
            assert compiler.json_schema({"const": 0}) is kept
    compiler.json_schema({"const": time.monotonic()})
    compiler.json_schema({"const": time.monotonic()})  # nobody's request


def test_a_tool_that_may_be_lax_is_refused_too_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GrammarCompiler(SyntheticCodec())
    monkeypatch.setattr(grammar_compiler, "COMPILE_SECONDS", 1e-9)
    tools = [Tool(name, {"type": "object", "properties": {name: {}}}) for name in ("a", "b")]
    with compiler.one_request(), pytest.raises(ToolSchemaError) as error:
        call_grammar(compiler, CallFormat("bare"), tools, required=True)
    assert error.value.tool == "b"


def test_the_tool_that_came_too_late_is_named(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "COMPILE_SECONDS", 1e-9)
    tools = [{"type": "function", "function": {"name": name, "parameters": properties(2, name)}} for name in ("a", "b")]
    body = {"messages": HELLO, "tools": tools, "tool_choice": "required"}
    error = check_error(client.post(CHAT, json=body), 400, "tools.1.function.parameters", "invalid_schema")
    assert "too long" in error["message"]


# -- what is kept ----------------------------------------------------------------------------------------------------------


def test_the_cache_is_bounded_by_number_and_by_bytes() -> None:
    cache: GrammarCache[int] = GrammarCache(3, 1000)
    for number in range(4):
        cache.put(f"{number}", number, 99)
    assert [cache.get(f"{number}") for number in range(4)] == [None, 1, 2, 3]
    assert cache.get("1") == 1  # used last
    cache.put("large", 5, 800)
    assert (cache.get("1"), cache.get("2"), cache.get("3"), cache.get("large"), cache.nbytes) == (1, None, None, 5, 905)
    cache.put("large", 6, 10)
    assert (cache.get("large"), cache.nbytes) == (6, 115)
    cache.put("too large", 7, 1001)
    assert (len(cache), cache.nbytes) == (0, 0)


def test_grammars_count_by_their_size() -> None:
    compiler = GrammarCompiler(SyntheticCodec())
    compiler.json_schema({"const": 0})
    small = compiler._cache.nbytes
    assert SIZES[0] * BYTES_PER_SYMBOL < small < SIZES[0] * BYTES_PER_SYMBOL + 1000
    compiler.json_schema({"allOf": [either(number) for number in range(8)]})
    assert compiler._cache.nbytes - small > SIZES[1] * BYTES_PER_SYMBOL
