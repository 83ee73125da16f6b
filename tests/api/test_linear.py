"""What meets a client's text takes time in proportion to it, whatever the text is.

Processor time of this thread is measured, at sizes where time that grows with the square is ten times beyond the bound.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable
from functools import partial

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.api.body import parse
from app.api.errors import ApiError
from app.api.field_types import conversation_name
from app.api.limits import Limits, check_items
from app.api.schemas import ChatBody, CompletionBody
from app.text.control import any_of
from app.text.errors import GrammarError
from app.text.schema_errors import check_bounds, explain
from app.text.stops import StopMatcher
from app.text.surrogates import has_lone_surrogate
from app.text.thoughts import KNOWN_TAGS, Thoughts
from app.text.tool_calls import CallFormat, CallParser
from tests.api.support import check_error, served
from tests.synthetic import SyntheticEngine

SIZE = 200_000
SECONDS = 20e-6  # of one character; what runs here takes about one
LIMITS = Limits(context=1 << 20, prompt_tokens=1 << 20, prompt_chars=1 << 25)


def seconds(work: Callable[[], object]) -> float:
    started = time.thread_time()
    with contextlib.suppress(ApiError, GrammarError):
        work()
    return time.thread_time() - started


def repeated(parts: tuple[str, str, str, str]) -> str:
    """A beginning, two parts that fill one half each, and an end."""
    first, one, two, last = parts
    return first + one * (SIZE // 2 // len(one)) + two * (SIZE // 2 // len(two)) + last


def texts(alphabet: list[str]) -> st.SearchStrategy[str]:
    part = st.lists(st.sampled_from(alphabet), min_size=1, max_size=4).map("".join)
    return st.tuples(part, part, part, part).map(repeated)


FEW = settings(max_examples=12)
FEWER = settings(max_examples=3)  # where a text comes by the character


@FEW
@given(texts(['"', "\\", "[", "]", "{", "}", ":", ",", " ", "1", "e", ".", "-", "a", '"a"', '\\"', "\\ud800", "é"]))
@example('"' + '\\"' * 50_000 + "[" * 100_002)
@example('{"prompt": "a", "stop": [' + "[" * 100_000)
@example('{"prompt": ' + "9" * SIZE + "}")
@example('{"prompt": 0.' + "9" * SIZE + "e-5}")
@example('{"metadata": ' + '{"a": ' * 900 + '["\\ud83d\\ude00"' + ', "b"' * 50_000 + "]" + "}" * 901)
@example('{"metadata": ' + '{"a": ' * 900 + "[1" + ", 1" * 50_000 + ', "\\ud83d"]' + "}" * 901)
def test_bodies(text: str) -> None:
    raw = text.encode()
    assert seconds(lambda: check_items(raw)) < SECONDS * len(raw)
    for model in (CompletionBody, ChatBody):
        assert seconds(partial(parse, raw, model, LIMITS)) < SECONDS * len(raw)


@FEWER
@given(texts(["<tool_call>", "</tool_call>", "<tool", "<", " ", "\n", "{", "[", '"', "a", "}", '{"name": "f"}']), st.booleans())
@example("{" + "a" * SIZE, True)
@example("a" + " " * SIZE, True)
@example("a<tool_call>" + "b" * SIZE, True)
@example(" " * SIZE, True)
@example("<tool_call></tool_call>" * (SIZE // 23), False)
def test_tool_calls(text: str, by_character: bool) -> None:
    def read() -> None:
        parser = CallParser(CallFormat("tagged"), frozenset("f"))
        for piece in text if by_character else [text]:
            parser.push(piece)
        parser.end()

    assert seconds(read) < SECONDS * len(text)


@pytest.mark.slow
@FEWER
@given(texts(["a", "b", "aa", "ab"]), st.lists(st.text("ab", min_size=500, max_size=1024), min_size=1, max_size=2))
@example("a" * SIZE, ["a" * 1023 + "b"])
@example(("a" * 1022 + "c") * (SIZE // 1023), ["a" * 1023 + "b", "a" * 1000 + "b"])
def test_stops(text: str, stops: list[str]) -> None:
    def read() -> None:
        matcher = StopMatcher(stops)
        for place in range(0, len(text), 3):
            matcher.push(text[place : place + 3], ends=False)

    assert seconds(read) < SECONDS * len(text)


@FEW
@given(texts(["regex parse error:", "Unimplemented keys: [", '"', "\\", "]", "\n", "error: ", "a", "Unsatisfiable schema: "]))
@example("regex parse error:" * (SIZE // 18))
@example('Unimplemented keys: ["' + '\\"' * (SIZE // 2) + "]")
def test_messages_of_the_grammar_library(text: str) -> None:
    assert seconds(lambda: explain(text)) < SECONDS * len(text)


@pytest.mark.parametrize("schema", [{"enum": ["a"] * 20_000}, {"anyOf": [{}] * 20_000}, {"a": "b" * SIZE}, {"é" * SIZE: 1}])
def test_schemas(schema: dict[str, object]) -> None:
    size = len(json.dumps(schema))
    assert seconds(lambda: check_bounds(schema)) < SECONDS * size
    assert seconds(lambda: has_lone_surrogate(schema)) < SECONDS * size


def test_names_of_control_tokens() -> None:
    names = [f"<|reserved_special_token_{number}|>" for number in range(5000)]
    pattern = re.compile(any_of(names))
    text = "<|reserved_special_token_x" * (SIZE // 26)
    assert seconds(lambda: pattern.findall(text)) < SECONDS / 4 * SIZE
    assert all(pattern.fullmatch(name) for name in names)


@given(st.sets(st.text("ab|.", min_size=1, max_size=5), min_size=1, max_size=8), st.text("ab|.", max_size=20))
def test_any_of_finds_the_longest_name(names: set[str], text: str) -> None:
    plain = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    assert re.findall(any_of(names), text) == re.findall(plain, text)


@pytest.mark.slow
@FEWER
@given(texts(["<think>", "</think>", "<", " ", "\n", "a"]), st.booleans())
@example("<think>" + " " * SIZE, True)
@example("<think>a" + " " * SIZE, True)
@example(" " * SIZE + "<think>", True)
@example("<think>a" + " <" * (SIZE // 2), True)
def test_thoughts(text: str, begun: bool) -> None:
    def read() -> None:
        parser = Thoughts(KNOWN_TAGS[0], begun).parser()
        for character in text:
            parser.push(character)
        parser.end()

    assert seconds(read) < SECONDS * len(text)


def test_names_of_conversations() -> None:
    assert seconds(lambda: conversation_name(None, "a" * SIZE + " ")) < SECONDS * SIZE


def test_a_lone_surrogate_far_down_is_named_in_a_short_error() -> None:
    level = '{"' + "k" * 40 + '": '
    raw = '{"prompt": "a", "metadata": ' + level * 300 + '"\\ud800"' + "}" * 301
    with pytest.raises(ApiError, match="lone surrogate") as error:
        parse(raw.encode(), CompletionBody, LIMITS)
    assert error.value.param is not None
    assert error.value.param.startswith("metadata.kkkk")
    assert len(error.value.param) < 1000


def test_a_message_that_quotes_much_is_still_understood() -> None:
    quoted = "regex parse error:\n    " + "(" * SIZE + "\n    ^\nerror: unclosed group"
    assert explain(quoted) == "The schema has a pattern that is not supported: unclosed group."


def test_a_body_that_is_one_long_string_without_an_end_is_refused_while_others_are_answered() -> None:
    raw = b'"' + b'\\"' * 300_000 + b"[" * 100_002
    with served(SyntheticEngine()) as url:
        check_error(httpx.post(url + "/tokenize", content=raw, headers={"Content-Type": "application/json"}), 400)
