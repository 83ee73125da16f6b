"""Tool calls: told apart from content however the text is cut, in each format, and forced by a grammar."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.text.codec import TextCodec
from app.text.errors import ChatTemplateError, GrammarError
from app.text.tool_calls import CallFormat, CallParser, ParsedCall, call_format
from app.text.tool_grammar import Tool, ToolSchemaError, call_grammar
from tests.text.samples import byte_level

TAGGED, BARE = CallFormat("tagged"), CallFormat("bare", "parameters")
LISTED = CallFormat("listed", marks=(0, None), separator=" ", short_ids=True)
NAMES = frozenset({"f", "g"})
F = '{"name": "f", "arguments": {"x": 1}}'
G = '{"name": "g", "parameters": {"y": "é"}}'
CALL_F, CALL_G = ParsedCall("f", '{"x": 1}'), ParsedCall("g", '{"y": "é"}')


def tag(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


# (format, text, content, calls)
CASES: list[tuple[CallFormat, str, str, list[ParsedCall]]] = [
    (TAGGED, tag(F), "", [CALL_F]),
    (TAGGED, f"\n\n{tag(F)}\n{tag(G)}\n", "", [CALL_F, CALL_G]),
    (TAGGED, f"I look it up. \n{tag(F)}", "I look it up.", [CALL_F]),
    (TAGGED, f"{tag(F)}\nDone.", "Done.", [CALL_F]),
    (TAGGED, f"<tool_call>[{F}, {G}]</tool_call>", "", [CALL_F, CALL_G]),
    (TAGGED, f"<tool_call>{F}", "", [CALL_F]),
    (TAGGED, tag('{"name": "f", "arguments": "{\\"x\\": 1}"}'), "", [CALL_F]),
    (TAGGED, tag('{"name": "f"}'), "", [ParsedCall("f", "{}")]),
    (TAGGED, tag('{"name": "other", "arguments": {}}'), tag('{"name": "other", "arguments": {}}'), []),
    (TAGGED, tag('{"name": "f", "arguments": {"x": NaN}}'), tag('{"name": "f", "arguments": {"x": NaN}}'), []),
    (TAGGED, '<tool_call>\n{"name": "f", "argum', '<tool_call>\n{"name": "f", "argum', []),
    (TAGGED, "a <tool_cal and </tool_call> \n", "a <tool_cal and </tool_call> \n", []),
    (TAGGED, F, "", [CALL_F]),
    (TAGGED, f"[{F}]", "", [CALL_F]),
    (TAGGED, f'{{"a": 1}} {tag(F)}', '{"a": 1}', [CALL_F]),
    (TAGGED, '{"a": 1}\n', '{"a": 1}\n', []),
    (BARE, G, "", [CALL_G]),
    (BARE, f" {F}; {G}\n", "", [CALL_F, CALL_G]),
    (BARE, f"No: {F}", f"No: {F}", []),
    (BARE, f"{F} or so", f"{F} or so", []),
    (BARE, '{"a": 1}', '{"a": 1}', []),
    (BARE, "[", "[", []),
    (BARE, "", "", []),
    (LISTED, f" [{F}, {G}]", "", [CALL_F, CALL_G]),
    (LISTED, "[]", "[]", []),
    (CallFormat("tagged", marks=(5, 6)), f"\n{F}\n\n{G}\n", "", [CALL_F, CALL_G]),
    (BARE, "[" * 100_000, "[" * 100_000, []),
]


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(places)]


@pytest.mark.parametrize(("form", "text", "content", "calls"), CASES, ids=range(len(CASES)))
@given(cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_calls_and_content(form: CallFormat, text: str, content: str, calls: list[ParsedCall], cuts: list[int]) -> None:
    parser = CallParser(form, NAMES)
    shown = "".join(parser.push(piece) for piece in pieces(text, cuts))
    assert content.startswith(shown)  # never a part of a call
    rest, found = parser.end()
    assert (shown + rest, found) == (content, calls)


@given(st.text("<tool_cal/>\n {}\"'af", max_size=60), st.lists(st.integers(0, 100), max_size=6))
def test_a_text_without_calls_is_content_to_the_last_character(text: str, cuts: list[int]) -> None:
    assume("<tool_call>" not in text)
    for form in (TAGGED, BARE):
        parser = CallParser(form, NAMES)
        shown = "".join(parser.push(piece) for piece in pieces(text, cuts))
        rest, found = parser.end()
        assert (shown + rest, found) == (text, [])


def test_content_is_sent_as_soon_as_it_is_certain() -> None:
    parser = CallParser(TAGGED, NAMES)
    assert parser.push("Hello wor") == "Hello wor"
    assert parser.push("ld <") == "ld"
    assert parser.push("b>") == " <b>"
    assert CallParser(BARE, NAMES).push("Hello") == "Hello"


def test_at_most_one() -> None:
    parser = CallParser(TAGGED, NAMES, limit=1)
    parser.push(tag(F) + tag(G))
    assert parser.end() == ("", [CALL_F])


def test_formats_of_templates() -> None:
    def control(name: str) -> int | None:
        return {"[TOOL_CALLS]": 5}.get(name)

    hermes = 'within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": <function-name>, "arguments": <args>}'
    llama = 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'
    mistral = '{{- "[TOOL_CALLS] [" }}{{ raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}'
    assert call_format(hermes, control) == CallFormat("tagged")
    assert call_format(llama, control) == CallFormat("bare", "parameters")
    assert call_format(mistral, control) == CallFormat("listed", marks=(5, None), separator=" ", short_ids=True)
    assert call_format("{{ tools }}", control) == CallFormat("bare")
    for unknown in ("<tool_call>\n<function=name>", "[TOOL_CALLS]name[ARGS]{}"):
        with pytest.raises(ChatTemplateError) as refused:
            call_format(unknown, control)
        assert refused.value.param == "tools"


# -- grammars ------------------------------------------------------------------------------------------------------------

CODEC = TextCodec(byte_level(), frozenset({2}))
RANGE = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["x"]}
TOOLS = [Tool("f", {**RANGE, "additionalProperties": False}, strict=True), Tool("g")]
HIDDEN = CallFormat("listed", marks=(1, None), separator=" ")


def written(grammar: Any, seed: int, limit: int = 600) -> str | None:
    random, matcher, tokens = np.random.default_rng(seed), grammar.matcher(), list[int]()
    for _ in range(limit):
        token = int(random.choice(np.flatnonzero(matcher.allowed(()))))
        if token == 2:
            return CODEC.decode(tokens)
        tokens.append(token)
        matcher.accept([token])
    return None


@pytest.mark.parametrize("form", [TAGGED, BARE, CallFormat("bare"), HIDDEN, CallFormat("tagged", marks=(1, 0))])
@pytest.mark.parametrize("most", [1, 3])
def test_required_calls_are_read_back(form: CallFormat, most: int) -> None:
    grammar = call_grammar(CODEC.grammars, form, TOOLS, required=True, most=most)
    counts = set()
    for seed in range(30):
        text = written(grammar, seed)
        assert text is not None
        parser = CallParser(form, NAMES)
        assert parser.push(text) == ""
        rest, calls = parser.end()
        assert rest == ""
        counts.add(len(calls))
        for call in calls:
            arguments = json.loads(call.arguments)
            assert arguments == {} if call.name == "g" else 0 <= arguments["x"] <= 99
    assert counts <= set(range(1, most + 1))
    assert form.style == "bare" or max(counts) == most


def test_a_call_once_begun_is_held_to_its_schema() -> None:
    for form, before in ((TAGGED, "Well: <tool_call>"), (TAGGED, "\n<tool_call>"), (TAGGED, ""), (BARE, "")):
        grammar = call_grammar(CODEC.grammars, form, TOOLS, required=False)
        matcher = grammar.matcher()
        assert matcher.allowed([])[2]  # free text may end at once
        matcher.accept(CODEC.encode(before + ("\n" if before else "") + '{"name": "f", "', False))
        matcher.accept(CODEC.encode('arguments": {"' if form is TAGGED else 'parameters": {"', False))
        allowed = np.flatnonzero(matcher.allowed([])).tolist()
        assert [CODEC.decode([token]) for token in allowed] == ["x"]


def test_an_answer_of_a_schema_or_a_call() -> None:
    for form in (TAGGED, BARE, HIDDEN):
        grammar = call_grammar(CODEC.grammars, form, TOOLS, required=False, most=1, content={"enum": ["a", "b"]})
        texts = {written(grammar, seed) for seed in range(30)}
        assert {'"a"', '"b"'} & texts
        for text in texts - {'"a"', '"b"'}:
            assert text is not None
            parser = CallParser(form, NAMES)
            parser.push(text)
            assert len(parser.end()[1]) == 1


def test_schemas_of_tools() -> None:
    bad = {"type": "object", "properties": {"x": {"not": {}}}}
    with pytest.raises(ToolSchemaError, match="not supported: not") as refused:
        call_grammar(CODEC.grammars, TAGGED, [Tool("g"), Tool("f", bad, strict=True)], required=True)
    assert refused.value.tool == "f"
    # the schema of a tool that is not strict is advice where it cannot be kept to
    text = written(call_grammar(CODEC.grammars, TAGGED, [Tool("g", bad)], required=True, most=1), 5)
    assert text is None or '"name": "g"' in text
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"anyOf": [deep]}
    with pytest.raises(GrammarError, match="nests"):
        call_grammar(CODEC.grammars, TAGGED, TOOLS, required=False, content=deep)
