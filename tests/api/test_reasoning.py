"""Thoughts of a reasoning model over HTTP: beside the content, streamed, with stops, tools, schemas and cut short."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from starlette.testclient import TestClient

from app.text.thoughts import KNOWN_TAGS, Thoughts
from tests.api.support import CHAT, HELLO, STREAMS, ask, client_of, served, stream
from tests.synthetic import SyntheticCodec, SyntheticEngine
from tests.synthetic_session import EOS

MAY, BEGUN = Thoughts(KNOWN_TAGS[0]), Thoughts(KNOWN_TAGS[0], begun=True)
ANSWER = "<think>\nIs 6 even?\n\nYes.\n</think>\n\nIt is."
THOUGHT, CONTENT = "Is 6 even?\n\nYes.", "It is."
TOOLS = [{"type": "function", "function": {"name": "stop"}}]
CALL = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'


@pytest.fixture
def engine() -> Iterator[SyntheticEngine]:
    engine = SyntheticEngine(codec=SyntheticCodec(thoughts=MAY))
    engine.answer = ANSWER
    yield engine
    engine.close()


def told(client: TestClient, *, streamed: bool, **fields: Any) -> tuple[str | None, str | None, str]:
    """Thoughts, content and the reason of the end; of a stream, joined, None where no chunk had any."""
    if not streamed:
        choice = ask(client, CHAT, **fields).json()["choices"][0]
        return choice["message"]["reasoning_content"], choice["message"]["content"], choice["finish_reason"]
    payloads = stream(client, CHAT, {"messages": HELLO, **fields})
    choices = [choice for payload in payloads[:-1] for choice in payload["choices"]]
    deltas = [choice["delta"] for choice in choices]
    for delta in deltas:
        assert not ({"content", "reasoning_content"} <= delta.keys())  # many clients look at one of them only
    thoughts = [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta]
    contents = [delta["content"] for delta in deltas[1:] if "content" in delta]
    places = [place for place, delta in enumerate(deltas) if "reasoning_content" in delta]
    assert places == list(range(1, len(places) + 1))  # behind the role, and before all content
    assert all(thoughts)
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    return "".join(thoughts) or None, "".join(contents) or None, choices[-1]["finish_reason"]


@STREAMS
@pytest.mark.parametrize("begun", [False, True])
def test_thoughts_and_content(client: TestClient, engine: SyntheticEngine, stream: bool, begun: bool) -> None:
    if begun:
        engine.codec.thoughts = BEGUN  # type: ignore[attr-defined]
        engine.answer = ANSWER.removeprefix("<think>")
    assert told(client, streamed=stream) == (THOUGHT, CONTENT, "stop")
    assert told(client, streamed=stream, n=1, logprobs=True, speculative={"trace": True}) == (THOUGHT, CONTENT, "stop")


@STREAMS
def test_an_answer_without_thoughts(client: TestClient, engine: SyntheticEngine, stream: bool) -> None:
    engine.answer = "It is."
    assert told(client, streamed=stream) == (None, CONTENT, "stop")


@STREAMS
def test_the_end_inside_the_thoughts(client: TestClient, engine: SyntheticEngine, stream: bool) -> None:
    cut = len("<think>\nIs 6 ev")
    assert told(client, streamed=stream, max_tokens=cut) == ("Is 6 ev", None, "length")
    assert told(client, streamed=stream, stop=["even?"]) == ("Is 6", None, "stop")
    assert told(client, streamed=stream, stop=["</think>"]) == (THOUGHT, None, "stop")
    assert told(client, streamed=stream, stop=["is."]) == (THOUGHT, "It ", "stop")


@STREAMS
def test_calls_after_thoughts(client: TestClient, engine: SyntheticEngine, stream: bool) -> None:
    engine.answer = f"<think>\nI may {CALL}\n</think>\n\n{CALL}"
    assert told(client, streamed=stream, tools=TOOLS) == (f"I may {CALL}", None, "tool_calls")
    engine.answer = '<think>hm</think>{"name": "stop", "arguments": {}}'  # bare
    assert told(client, streamed=stream, tools=TOOLS) == ("hm", None, "tool_calls")


def test_thoughts_that_nobody_wants(client: TestClient, engine: SyntheticEngine) -> None:
    message = ask(client, CHAT, include_reasoning=False).json()["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert message["content"] == CONTENT
    payloads = stream(client, CHAT, {"messages": HELLO, "include_reasoning": False})
    deltas = [choice["delta"] for payload in payloads[:-1] for choice in payload["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == CONTENT
    assert not any("reasoning_content" in delta for delta in deltas)


def test_a_server_that_leaves_them_in_the_content(engine: SyntheticEngine) -> None:
    with client_of(lambda: engine, split_reasoning=False) as client:
        message = ask(client, CHAT).json()["choices"][0]["message"]
        assert message == {"role": "assistant", "content": ANSWER, "refusal": None}


def test_a_model_that_does_not_think(client: TestClient, engine: SyntheticEngine) -> None:
    engine.codec.thoughts = None  # type: ignore[attr-defined]
    message = ask(client, CHAT).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": ANSWER, "refusal": None}


def test_details_cover_the_thoughts(client: TestClient) -> None:
    whole = ask(client, CHAT, logprobs=True, speculative={"trace": True}).json()
    count = whole["usage"]["completion_tokens"]
    payloads = stream(client, CHAT, {"messages": HELLO, "logprobs": True, "speculative": {"trace": True}})
    choices = [choice for payload in payloads[:-1] for choice in payload["choices"]]
    for found in ([whole["choices"][0]], choices):
        assert sum(len((choice["logprobs"] or {"content": []})["content"]) for choice in found) == count
        assert sum(len(choice.get("trace", [])) for choice in found) == count


def test_openai_python(engine: SyntheticEngine) -> None:
    with served(engine) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as api:
        hello: list[Any] = list(HELLO)
        whole: Any = api.chat.completions.create(model="synthetic", messages=hello)
        assert whole.choices[0].message.reasoning_content == THOUGHT
        again = [*hello, whole.choices[0].message.model_dump(), *hello]
        assert api.chat.completions.create(model="synthetic", messages=again).choices[0].message.content == CONTENT
        with api.chat.completions.stream(model="synthetic", messages=hello) as events:
            message: Any = events.get_final_completion().choices[0].message
        assert (message.reasoning_content, message.content) == (THOUGHT, CONTENT)


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["ab", "b"]}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
FORCED = {"tools": TOOLS, "tool_choice": "required"}


@pytest.mark.parametrize(
    ("thoughts", "fields", "answer", "whole"),
    [
        (MAY, {"response_format": FORMAT}, '<think>hm</think>\n\n{"a": "b"}', True),
        (MAY, {"response_format": FORMAT}, '{"a": "b"}', True),
        (BEGUN, {"response_format": FORMAT}, 'hm</think>{"a": "b"}', True),
        (BEGUN, {"response_format": FORMAT}, '{"a": "b"}', False),
        (None, {"response_format": FORMAT}, '<think>hm</think>{"a": "b"}', False),
        (MAY, FORCED, f"<think>hm</think>\n\n{CALL}", True),
        (BEGUN, FORCED, f"hm</think>{CALL}", True),
        (BEGUN, FORCED, CALL, False),
        (BEGUN, {**FORCED, "tool_choice": "auto", "response_format": FORMAT}, 'hm</think>{"a": "b"}', True),
    ],
)
def test_the_shape_of_an_answer_begins_behind_the_thoughts(
    client: TestClient, engine: SyntheticEngine, thoughts: Thoughts | None, fields: Any, answer: str, whole: bool
) -> None:
    engine.codec.thoughts = thoughts  # type: ignore[attr-defined]
    assert ask(client, CHAT, **fields).status_code == 200
    grammar = engine.requests[-1].grammar
    assert grammar is not None
    matcher = grammar.matcher()
    try:
        matcher.accept(list(answer.encode()))
        assert bool(matcher.allowed(())[EOS]) is whole
    except ValueError:
        assert not whole
