"""Grammars: masks along paths, ends, errors that name what a schema asks for."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.text.codec import TextCodec
from app.text.errors import GrammarError
from app.text.grammar import CompiledGrammar
from app.text.grammar_compiler import MAX_CACHED, GrammarCompiler
from app.text.schema_errors import MAX_NESTING, MAX_SCHEMA
from tests.structured import json_tokenizer
from tests.text.samples import byte_level, tokenizer

RECORD = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 20},
        "s": {"type": "string", "maxLength": 4},
        "k": {"enum": ["ab", "abc", True, None]},
        "l": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["n", "s", "k"],
    "additionalProperties": False,
}
EOS = frozenset({1, 2})
CODECS = {"bytes": TextCodec(byte_level(), EOS), "characters": TextCodec(json_tokenizer(), EOS)}
ANY_CODEC = pytest.mark.parametrize("codec", list(CODECS.values()), ids=list(CODECS))


def write(codec: TextCodec, grammar: CompiledGrammar, seed: int, limit: int = 400) -> tuple[list[int], str | None]:
    """Tokens drawn at random from what is allowed; the text, or None where it did not end."""
    random, matcher, tokens = np.random.default_rng(seed), grammar.matcher(), list[int]()
    while len(tokens) < limit:
        token = int(random.choice(np.flatnonzero(matcher.allowed(()))))
        tokens.append(token)
        matcher.accept([token])
        if token in EOS:
            return tokens, codec.decode(tokens)
    return tokens, None


def check_record(value: Any) -> None:
    assert set(value) in ({"n", "s", "k"}, {"n", "s", "k", "l"})
    assert 0 <= value["n"] <= 20
    assert len(value["s"]) <= 4
    assert value["k"] in ("ab", "abc", True, None)
    assert all(isinstance(item, bool) for item in value.get("l", []))


@ANY_CODEC
def test_what_is_allowed_is_valid_json_in_one_style(codec: TextCodec) -> None:
    grammar = codec.grammars.json_schema(RECORD)
    ends = set()
    for seed in range(40):
        tokens, text = write(codec, grammar, seed)
        assert text is not None
        value = json.loads(text)
        check_record(value)
        assert text.startswith('{"n": ')
        assert ", " in text
        ends.add(tokens[-1])
        assert not codec.special_ids.intersection(tokens[:-1])
    assert ends == EOS  # each of several is allowed at the end


@pytest.mark.slow
@ANY_CODEC
@given(seed=st.integers(0, 1000), data=st.data())
@settings(max_examples=40)
def test_a_path_leaves_no_trace(codec: TextCodec, seed: int, data: st.DataObject) -> None:
    """Masks after any order of accepted tokens and abandoned paths are those of a matcher that read the tokens at once."""
    grammar = codec.grammars.json_schema(RECORD)
    tokens, _ = write(codec, grammar, seed)
    matcher, done = grammar.matcher(), 0
    while done < len(tokens):
        for _ in range(data.draw(st.integers(0, 3))):
            path: list[int] = []
            for _ in range(data.draw(st.integers(0, 5))):
                allowed = np.flatnonzero(matcher.allowed(path))
                path.append(int(allowed[data.draw(st.integers(0, 10_000)) % allowed.size]))
            found = matcher.allowed(path).copy()
            fresh = grammar.matcher()
            fresh.accept([*tokens[:done], *path])
            np.testing.assert_array_equal(found, fresh.allowed(()))
        run = data.draw(st.integers(1, 6))
        matcher.accept(tokens[done : done + run])
        done += run


@ANY_CODEC
def test_what_is_forced_is_all_that_is_allowed(codec: TextCodec) -> None:
    grammar = codec.grammars.json_schema(RECORD)
    for seed in range(10):
        tokens, _ = write(codec, grammar, seed)
        matcher, longest = grammar.matcher(), 0
        for token in tokens:
            forced = matcher.forced()
            longest = max(longest, len(forced))
            for place, other in enumerate(forced):
                assert np.flatnonzero(matcher.allowed(forced[:place])).tolist() == [other]
            matcher.accept([token])
        assert longest >= 2
        assert matcher.forced() == []


def test_nothing_but_the_end_follows_the_end() -> None:
    codec = CODECS["bytes"]
    matcher = codec.grammars.json_schema({"const": 1}).matcher()
    ids = codec.encode("1", add_special_tokens=False)
    assert np.flatnonzero(matcher.allowed(ids)).tolist() == [1, 2]
    assert np.flatnonzero(matcher.allowed([*ids, 2, 7])).tolist() == [1, 2]
    matcher.accept([*ids, 1])
    assert np.flatnonzero(matcher.allowed([])).tolist() == [1, 2]


def test_a_token_that_is_not_allowed() -> None:
    codec = CODECS["bytes"]
    matcher = codec.grammars.json_schema({"type": "object"}).matcher()
    with pytest.raises(ValueError, match="does not allow"):
        matcher.accept(codec.encode("[", add_special_tokens=False))


def test_any_object() -> None:
    codec = CODECS["characters"]
    grammar = codec.grammars.json_schema({"type": "object"})
    texts = [text for _, text in (write(codec, grammar, seed) for seed in range(40)) if text is not None]
    assert len(texts) > 5
    assert all(isinstance(json.loads(text), dict) for text in texts)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"anyOf": [schema]}
    return schema


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"type": "object", "properties": {"a": {"not": {}, "uniqueItems": True}}}, "not supported: not, uniqueItems"),
    ({"my secret": 1, "if": {}, "then": {}}, "if, then"),
    ({"type": "string", "pattern": "(?=secret)b"}, "pattern that is not supported: look-around"),
    ({"type": "string", "format": "secret"}, "format"),
    ({"type": "secret"}, "type that JSON does not know"),
    ({"type": "number", "minimum": 5, "maximum": 3}, "minimum .5. is greater than maximum .3."),
    ({"enum": []}, "admits no value"),
    ({"$ref": "#/secret"}, r"\$ref"),
    ({"$ref": "https://secret.example/x"}, r"\$ref"),
    ({"$ref": "#"}, "refers to itself"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "complex"),
    ({"properties": 3, "type": "object"}, "properties must be an object"),
    ({"type": "string", "minLength": "secret"}, "minLength must be a positive integer"),
    ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, "oneOf"),
    ({"allOf": [{"anyOf": [{"properties": {f"{i}{j}": {}}} for i in range(6)]} for j in range(6)]}, "complex"),
    (nested(MAX_NESTING), "nests deeper"),
    ({"enum": ["secret" * 30_000]}, f"larger than {MAX_SCHEMA}"),
]


@pytest.mark.parametrize(("schema", "words"), PROBLEMS, ids=[words for _, words in PROBLEMS])
def test_errors_say_what_is_wrong_and_quote_nothing(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(GrammarError, match=words) as caught:
        CODECS["bytes"].grammars.json_schema(schema)
    message = str(caught.value)
    assert "secret" not in message
    assert message.startswith("The schema ")
    assert len(message) <= 300


def test_options_inside_a_schema_change_nothing() -> None:
    codec = CODECS["bytes"]
    options = {"whitespace_flexible": True, "lenient": True}
    with pytest.raises(GrammarError, match="not supported: not"):
        codec.grammars.json_schema({"not": {}, "x-guidance": options})
    _, text = write(codec, codec.grammars.json_schema({"const": [1, 2], "x-guidance": options}), 0)
    assert text == "[1, 2]"


def test_a_vocabulary_that_cannot_write_it() -> None:
    for name in ("metaspace", "word_piece"):
        with pytest.raises(GrammarError):
            TextCodec(tokenizer(name), frozenset({2})).grammars.json_schema({"type": "object"})
    codec = CODECS["characters"]
    with pytest.raises(GrammarError, match="vocabulary"):
        codec.grammars.json_schema({"const": "東京"})
    # far behind the beginning it shows only when the answer comes there, before a token is chosen
    far = codec.grammars.json_schema({"const": "a" * 80 + "東"}).matcher()
    far.accept(codec.encode('"' + "a" * 78))
    assert far.allowed([]).any()
    with pytest.raises(GrammarError, match="vocabulary"):
        far.allowed(codec.encode("aa"))


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece", "gemma"])
def test_tokenizer_families(name: str) -> None:
    codec = TextCodec(tokenizer(name), EOS)
    grammar = codec.grammars.json_schema(RECORD)
    for seed in range(10):
        _, text = write(codec, grammar, seed)
        assert text is not None
        check_record(json.loads(text))


def test_compiled_grammars_are_kept_and_bounded() -> None:
    compiler = GrammarCompiler(CODECS["characters"])
    first = compiler.json_schema({"const": 0})
    assert compiler.json_schema({"const": 0}) is first
    for number in range(MAX_CACHED):
        compiler.json_schema({"const": number + 1})
    assert compiler.json_schema({"const": 0}) is not first


def test_many_threads() -> None:
    compiler = GrammarCompiler(CODECS["characters"])

    def one(number: int) -> str | None:
        return write(CODECS["characters"], compiler.json_schema({"enum": [number % 7, "ab"]}), number)[1]

    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(one, range(60)))
    assert {text for text in texts if text is not None} <= {"0", "1", "2", "3", "4", "5", "6", '"ab"'}
    assert None not in texts
