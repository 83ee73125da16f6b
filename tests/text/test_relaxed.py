"""Keywords that are left out of a schema, and which formats the grammar library knows."""

from __future__ import annotations

from typing import Any

import pytest

from app.text.codec import TextCodec
from app.text.errors import GrammarError
from app.text.relaxed import FORMATS, relaxed
from tests.text.samples import tokenizer

UNIQUE = {"type": "array", "uniqueItems": True}
MORE_FORMATS = ("idn-email", "uri-reference", "iri", "json-pointer", "regex", "int32", "password", "binary", "byte")


@pytest.mark.parametrize("name", [*sorted(FORMATS), *MORE_FORMATS])
def test_the_formats_are_those_of_the_library(name: str):
    grammars = TextCodec(tokenizer("byte_level"), frozenset({2})).grammars
    schema = {"type": "string", "format": name}
    if name in FORMATS:
        grammars.json_schema(schema)
    else:
        with pytest.raises(GrammarError):
            grammars.json_schema(schema)
    grammars.json_schema(relaxed(schema).schema)
    assert relaxed(schema).dropped == (frozenset() if name in FORMATS else {"format"})


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: inner,
        lambda inner: {"type": "object", "properties": {"format": inner}},
        lambda inner: {"type": "array", "items": inner},
        lambda inner: {"type": "array", "prefixItems": [{}, inner]},
        lambda inner: {"anyOf": [{"type": "null"}, inner]},
        lambda inner: {"allOf": [inner]},
        lambda inner: {"$ref": "#/$defs/uniqueItems", "$defs": {"uniqueItems": inner}},
        lambda inner: {"type": "object", "additionalProperties": {"type": "array", "items": inner}},
    ],
)
def test_wherever_it_stands(wrap: Any):
    given = wrap({"type": "array", "items": {"type": ["string", "null"], "format": "x"}, "uniqueItems": True})
    found = relaxed(given)
    assert found.dropped == {"format", "uniqueItems"}
    assert found.schema == wrap({"type": "array", "items": {"type": ["string", "null"]}})
    assert given == wrap({"type": "array", "items": {"type": ["string", "null"], "format": "x"}, "uniqueItems": True})


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ({"enum": [UNIQUE, {"format": "x"}], "default": UNIQUE}, {"enum": [UNIQUE, {"format": "x"}], "default": UNIQUE}),
        ({"type": "array", "uniqueItems": False}, {"type": "array"}),
        ({"type": "integer", "format": "int32"}, {"type": "integer"}),
        ({"type": "string", "format": 5}, {"type": "string", "format": 5}),
        ({"type": 5, "format": "x"}, {"type": 5}),
        ({"properties": 5, "items": 5, "anyOf": {"a": 1}}, {"properties": 5, "items": 5, "anyOf": {"a": 1}}),
        ({"type": "object", "properties": {"uniqueItems": {"type": "string"}}}, None),
    ],
)
def test_what_means_nothing_is_not_reported(schema: dict[str, Any], kept: dict[str, Any] | None):
    found = relaxed(schema)
    assert found.schema == (schema if kept is None else kept)
    assert not found.dropped


def test_a_schema_without_end_is_refused():
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"items": deep}
    with pytest.raises(GrammarError, match="nests deeper"):
        relaxed(deep)
