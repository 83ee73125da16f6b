"""Thoughts told apart from content, however the text is cut; which prompts begin them; grammars behind them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.codec import TextCodec
from app.text.errors import GrammarError
from app.text.thoughts import KNOWN_TAGS, Tags, Thoughts, tags_of, thoughts_after
from app.text.tool_calls import CallFormat
from app.text.tool_grammar import Tool, call_grammar, schema_grammar
from tests.text.samples import byte_level, tokenizer

THINK = KNOWN_TAGS[0]
MAY, BEGUN = Thoughts(THINK), Thoughts(THINK, begun=True)

# (where it thinks, text, thoughts, content)
CASES: list[tuple[Thoughts, str, str, str]] = [
    (MAY, "<think>\na b\n\nc\n</think>\n\nyes \n", "a b\n\nc", "yes \n"),
    (MAY, "\n <think>a</think>b", "a", "b"),
    (MAY, "plain <think>a</think>", "", "plain <think>a</think>"),
    (MAY, "\n  plain", "", "\n  plain"),
    (MAY, "<think></think>b", "", "b"),
    (MAY, "<think>\n\n</think>\n\nb", "", "b"),
    (MAY, "<thin", "", "<thin"),
    (MAY, "<thing>", "", "<thing>"),
    (MAY, "<think>a </thi", "a </thi", ""),
    (MAY, "<think> \n a \n", "a", ""),
    (MAY, "<think>", "", ""),
    (MAY, "", "", ""),
    (MAY, " ", "", " "),
    (MAY, "<think>a<think>b</think>c</think>d", "a<think>b", "c</think>d"),
    (MAY, "<think>a <b> </ think></think>\n", "a <b> </ think>", ""),
    (BEGUN, "\na\n</think>\n\nb", "a", "b"),
    (BEGUN, "a", "a", ""),
    (BEGUN, " a  b  ", "a  b", ""),
    (BEGUN, "</think>b", "", "b"),
    (BEGUN, "a</think>", "a", ""),
    (BEGUN, "a</th</think>b", "a</th", "b"),
    (BEGUN, "a<</think>é", "a<", "é"),
    (Thoughts(KNOWN_TAGS[1]), "[THINK]a[/THINK]b", "a", "b"),
]


def split(thoughts: Thoughts, pieces: list[str]) -> tuple[str, str]:
    """Joined; nothing of the thoughts may come after content has."""
    parser = thoughts.parser()
    found = [*(parser.push(piece) for piece in pieces), parser.end()]
    spoken = False
    for thought, content in found:
        assert not (spoken and thought)
        spoken = spoken or bool(content)
    return "".join(one.thought for one in found), "".join(one.content for one in found)


@pytest.mark.parametrize(("thoughts", "text", "thought", "content"), CASES)
def test_however_it_is_cut(thoughts: Thoughts, text: str, thought: str, content: str):
    assert split(thoughts, [text]) == (thought, content)
    assert split(thoughts, list(text)) == (thought, content)
    for place in range(len(text)):
        assert split(thoughts, [text[:place], text[place:]]) == (thought, content)


@given(st.sampled_from([MAY, BEGUN]), st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "a", " ", "\n"])), st.data())
def test_cuts_change_nothing(thoughts: Thoughts, parts: list[str], data: st.DataObject):
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]
    assert split(thoughts, pieces) == split(thoughts, [text])


def test_thoughts_are_let_out_as_they_come():
    parser = BEGUN.parser()
    assert [parser.push(piece).thought for piece in ("one", " ", "two", "</", "b", "</think>")] == [
        "one",
        "",
        " two",
        "",
        "</b",
        "",
    ]


@pytest.mark.parametrize("tags", KNOWN_TAGS)
def test_tags_of_a_template(tags: Tags):
    assert tags_of(f"{{{{ messages }}}}{tags.opening}\n...{tags.closing}") == tags
    assert tags_of(tags.opening) is None


@pytest.mark.parametrize(
    ("prompt", "thoughts"),
    [
        ("<a>", MAY),
        ("<a><think>", BEGUN),
        ("<a><think>\n", BEGUN),
        ("<a><think>\n\n</think>\n\n", None),
        ("x</think>y<a>", MAY),
        ("x<think>y<a>", MAY),
    ],
)
def test_the_prompt_says_where_the_answer_starts(prompt: str, thoughts: Thoughts | None):
    assert thoughts_after(prompt, THINK) == thoughts


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% endfor %}[assistant]{% if enable_thinking is defined and not enable_thinking %}<think></think>"
    "{% elif opened %}<think>\n{% endif %}"
)
HELLO = [{"role": "user", "content": "hello"}]


def test_a_codec_reads_variables_and_thoughts():
    codec = TextCodec(byte_level(template=TEMPLATE), frozenset({2}))
    assert codec.read_chat(HELLO).thoughts == MAY
    assert codec.read_chat(HELLO, options={"opened": True}).thoughts == BEGUN
    closed = codec.read_chat(HELLO, options={"enable_thinking": False})
    assert closed.thoughts is None
    assert codec.decode(closed.ids) == "[user]hello[assistant]<think></think>"
    earlier = [{"role": "assistant", "content": "hi", "reasoning_content": "hm"}, *HELLO]
    assert codec.render_chat(earlier) == "[assistant]<think>hm</think>hi[user]hello[assistant]"
    assert TextCodec(tokenizer("byte_level"), frozenset({2})).read_chat(HELLO).thoughts is None


def test_tags_that_are_control_tokens_are_shown():
    made = byte_level(template="{{ '[THINK][/THINK]' }}{{ messages[0].content }}")
    made.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]", "[INST]"]})
    codec = TextCodec(made, frozenset({2}))
    ids = codec.encode("[INST][THINK]a[/THINK]b", add_special_tokens=False)
    assert codec.decode(ids) == "[THINK]a[/THINK]b"


def accepts(codec: TextCodec, grammar: object, text: str) -> bool:
    """Whether the text is a whole answer."""
    matcher = grammar.matcher()  # type: ignore[attr-defined]
    try:
        matcher.accept(codec.encode(text, add_special_tokens=False))
        return bool(matcher.allowed(())[2])
    except (ValueError, GrammarError):
        return False


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
JSON = '{"a": 1}'


@pytest.mark.parametrize(
    ("thoughts", "text", "whole"),
    [
        (MAY, JSON, True),
        (MAY, f'<think>a {{"b"</think>\n\n{JSON}', True),
        (MAY, f"hm {JSON}", False),
        (MAY, f"<think>a{JSON}", False),
        (BEGUN, f"\na</think>{JSON}", True),
        (BEGUN, JSON, False),
        (BEGUN, "a</think>hm", False),
        (None, f"<think>a</think>{JSON}", False),
    ],
)
def test_json_behind_thoughts(thoughts: Thoughts | None, text: str, whole: bool):
    codec = TextCodec(tokenizer("byte_level"), frozenset({2}))
    assert accepts(codec, schema_grammar(codec.grammars, SCHEMA, thoughts), text) is whole


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("required", "thoughts", "text", "whole"),
    [
        (True, MAY, f"<think>a {JSON}</think>\n{CALL}", True),
        (True, MAY, CALL, True),
        (True, BEGUN, f"a</think>\n\n{CALL}", True),
        (True, BEGUN, CALL, False),
        (True, MAY, "<think>a</think>no", False),
        (False, MAY, f"<think>a<tool_call>b</think>hm {CALL}", True),
        (False, MAY, "<think>a<tool_call>b</think>hm", True),
        (False, MAY, "<think>a</think>hm <tool_call>b", False),
        (False, MAY, "just text", True),
        (False, BEGUN, f"a<tool_call>b</think>{CALL}", True),
        (False, BEGUN, "a</think>hm", True),
    ],
)
def test_calls_behind_thoughts(required: bool, thoughts: Thoughts, text: str, whole: bool):
    codec = TextCodec(tokenizer("byte_level"), frozenset({2}))
    tools = [Tool("f", SCHEMA, strict=True)]
    grammar = call_grammar(codec.grammars, CallFormat("tagged"), tools, required=required, thoughts=thoughts)
    assert accepts(codec, grammar, text) is whole
