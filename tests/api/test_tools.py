"""Tools over HTTP: offered to the template, calls told apart from content, forced calls, errors with their paths."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import openai
import pytest
from starlette.testclient import TestClient

from app.api.structured import ToolDefinition
from app.engine.engine import Engine
from tests.api.support import CHAT, HELLO, STREAMS, ask, check_error, client_of, served, stream, text_of
from tests.engine.drafting import FLAT
from tests.structured import TEMPLATE, json_engine
from tests.synthetic import SyntheticEngine

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}, "y": {"enum": ["ab", "b"]}},
    "required": ["x", "y"],
    "additionalProperties": False,
}


def tool(name: str, parameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **({"parameters": parameters} if parameters else {}), **more}}


TOOLS = [tool("move", POINT, strict=True), tool("stop")]
CALL = '<tool_call>\n{"name": "move", "arguments": {"x": 3, "y": "ab"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'


def one_call(message: dict[str, Any], place: int = 0) -> tuple[str, Any]:
    call = message["tool_calls"][place]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    return call["function"]["name"], json.loads(call["function"]["arguments"])


# -- calls that the model makes of itself --------------------------------------------------------------------------------


def test_a_call(client: TestClient, engine: SyntheticEngine) -> None:
    engine.answer = CALL
    choice = ask(client, CHAT, tools=TOOLS).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert one_call(choice["message"]) == ("move", {"x": 3, "y": "ab"})


def test_content_and_several_calls(client: TestClient, engine: SyntheticEngine) -> None:
    engine.answer = f"Both.\n{CALL}\n{OTHER}"
    message = ask(client, CHAT, tools=TOOLS).json()["choices"][0]["message"]
    assert message["content"] == "Both."
    assert one_call(message, 1) == ("stop", {})
    assert message["tool_calls"][0]["id"] != message["tool_calls"][1]["id"]
    message = ask(client, CHAT, tools=TOOLS, parallel_tool_calls=False).json()["choices"][0]["message"]
    assert len(message["tool_calls"]) == 1


def test_streamed_calls(client: TestClient, engine: SyntheticEngine) -> None:
    engine.answer = f"Both.\n{CALL}\n{OTHER}"
    payloads = stream(client, CHAT, {"messages": HELLO, "tools": TOOLS, "stream_options": {"include_usage": True}})
    assert text_of(payloads) == "Both."
    choices = [choice for payload in payloads[:-1] for choice in payload["choices"]]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0, 1]
    assert one_call({"tool_calls": calls}) == ("move", {"x": 3, "y": "ab"})
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["tool_calls"]
    assert choices[-1]["delta"] == {}


@STREAMS
def test_no_call(client: TestClient, engine: SyntheticEngine, stream: bool) -> None:
    for answer in ("Just text <tool", f"{CALL[:-8]} and", CALL.replace("move", "other")):
        engine.answer = answer
        reply = ask(client, CHAT, tools=TOOLS, stream=stream)
        if not stream:
            choice = reply.json()["choices"][0]
            assert choice["message"]["content"] == answer
            assert "tool_calls" not in choice["message"]
            assert choice["finish_reason"] == "stop"
        else:
            payloads = [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: {")]
            assert text_of(payloads) == answer


def test_cut_short(client: TestClient, engine: SyntheticEngine) -> None:
    engine.answer = CALL
    choice = ask(client, CHAT, tools=TOOLS, max_tokens=len(CALL) - 20).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == CALL[:-20]


def test_a_call_that_takes_the_whole_budget_ended_by_length(client: TestClient, engine: SyntheticEngine) -> None:
    engine.answer = CALL
    choice = ask(client, CHAT, tools=TOOLS, max_tokens=len(CALL)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert one_call(choice["message"]) == ("move", {"x": 3, "y": "ab"})


def test_without_tools_and_with_none_calls_are_text(client: TestClient, engine: SyntheticEngine) -> None:
    engine.answer = CALL
    cases: list[dict[str, Any]] = [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}]
    for fields in cases:
        message = ask(client, CHAT, **fields).json()["choices"][0]["message"]
        assert message["content"] == CALL


def test_a_template_gets_the_whole_tool_but_strict() -> None:
    function = {"name": "move", "description": "Go there.", "parameters": POINT}
    given = ToolDefinition.model_validate({"type": "function", "function": {**function, "strict": True}})
    assert given.for_template() == {"type": "function", "function": function}
    bare = ToolDefinition.model_validate({"type": "function", "function": {"name": "stop", "description": None}})
    assert bare.for_template() == {"type": "function", "function": {"name": "stop"}}


# -- what reaches the model and the engine -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def json_client() -> Iterator[TestClient]:
    with json_engine(cost_curve=FLAT) as engine, client_of(lambda: engine) as client:
        yield client


def test_tools_are_in_the_prompt(json_client: TestClient) -> None:
    def prompt_tokens(**fields: Any) -> int:
        return int(ask(json_client, CHAT, max_tokens=1, **fields).json()["usage"]["prompt_tokens"])

    bare = prompt_tokens()
    assert prompt_tokens(tools=TOOLS) > bare
    assert prompt_tokens(tools=TOOLS, tool_choice="none") == bare


@pytest.mark.parametrize("choice", ["auto", "none", "required", {"type": "function", "function": {"name": "stop"}}])
def test_tokenize_counts_what_a_chat_reads(json_client: TestClient, choice: Any) -> None:
    body = {"messages": HELLO, "tools": TOOLS, "tool_choice": choice}
    counted = json_client.post("/tokenize", json=body).json()["count"]
    assert counted == json_client.post(CHAT, json=body | {"max_tokens": 1}).json()["usage"]["prompt_tokens"]
    bare = json_client.post("/tokenize", json={"messages": HELLO}).json()["count"]
    assert (counted == bare) == (choice == "none")


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "move"}}])
def test_calls_that_must_be_made(json_client: TestClient, choice: Any) -> None:
    tools = [tool("move", POINT), tool("stop")]
    for seed in range(4):
        fields = {"tools": tools, "tool_choice": choice, "seed": seed, "max_tokens": 180, "parallel_tool_calls": False}
        found = ask(json_client, CHAT, **fields).json()["choices"][0]
        assert found["finish_reason"] == "tool_calls"
        assert found["message"]["content"] is None
        name, arguments = one_call(found["message"])
        assert name == "move" if choice != "required" else name in ("move", "stop")
        assert arguments == {} if name == "stop" else set(arguments) == {"x", "y"}
        plain = ask(json_client, CHAT, **fields, speculative={"drafter": "none"}).json()["choices"][0]
        assert one_call(plain["message"]) == (name, arguments)


def test_a_schema_or_a_call(json_client: TestClient) -> None:
    answer = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["ab", 12]}}}
    kinds = set()
    for seed in range(12):
        fields = {"tools": TOOLS, "response_format": answer, "seed": seed, "max_tokens": 200, "parallel_tool_calls": False}
        choice = ask(json_client, CHAT, **fields, temperature=2.0).json()["choices"][0]
        kinds.add(choice["finish_reason"])
        if choice["finish_reason"] == "stop":
            assert json.loads(choice["message"]["content"]) in ("ab", 12)
    assert kinds == {"stop", "tool_calls"}


def test_an_answer_with_calls_can_be_sent_back(json_client: TestClient) -> None:
    fields = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 150, "parallel_tool_calls": False}
    message = ask(json_client, CHAT, **fields).json()["choices"][0]["message"]
    turns = [*HELLO, message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "done"}]
    reply = json_client.post(CHAT, json={"messages": turns, "tools": TOOLS, "max_tokens": 5})
    assert reply.status_code == 200, reply.text


DEAD_END = {"const": "a" * 40 + "東"}  # which the tiny vocabulary cannot spell; known only once the answer is there
CANNOT = tool("move", {"type": "object", "properties": {"x": DEAD_END}, "required": ["x"]}, strict=True)
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": DEAD_END}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [CANNOT], "tool_choice": "required"}, "tools"),
        ({"response_format": FORMAT}, "response_format.json_schema.schema"),
        ({"response_format": FORMAT, "tools": TOOLS, "tool_choice": "none"}, "response_format.json_schema.schema"),
    ],
)
def test_an_answer_that_cannot_go_on_names_what_asked_for_its_shape(
    json_client: TestClient, fields: dict[str, Any], param: str
) -> None:
    error = check_error(ask(json_client, CHAT, **fields, max_tokens=200), 400, param, "invalid_schema")
    assert stream(json_client, CHAT, {"messages": HELLO, **fields, "max_tokens": 200})[-1]["error"] == error


# -- refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [tool("f"), tool("a b")]}, "tools.1.function.name"),
        ({"tools": [tool("f"), tool("f")]}, "tools.1.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools.0.function.parameters"),
        ({"tools": [tool("f", {"type": "string"})]}, "tools.0.function.parameters"),
        ({"tools": [tool("f"), tool("g", {"not": {}}, strict=True)]}, "tools.1.function.parameters"),
        ({"tools": [tool(f"f{number}") for number in range(129)]}, "tools"),
        ({"tools": TOOLS, "tool_choice": "secret"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "secret"}}}, "tool_choice.function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ],
)
@STREAMS
def test_bad_tools(client: TestClient, fields: dict[str, Any], param: str, stream: bool) -> None:
    error = check_error(ask(client, CHAT, **fields, stream=stream), 400, param)
    assert "secret" not in error["message"]


def _same(engine: Engine) -> Engine:
    return engine


@pytest.mark.slow
def test_templates_that_cannot() -> None:
    for template, words in ((TEMPLATE.replace("tools", "x"), "render tools"), (TEMPLATE + "{# <function= #}", "format")):
        with json_engine(template=template) as engine, client_of(partial(_same, engine)) as client:
            error = check_error(ask(client, CHAT, tools=TOOLS), 400, "tools")
            assert words in error["message"]


# -- openai-python -------------------------------------------------------------------------------------------------------


def test_openai_tools() -> None:
    engine = SyntheticEngine()
    engine.answer = f"Both.\n{CALL}\n{OTHER}"
    fields: dict[str, Any] = {"model": "synthetic", "messages": HELLO, "tools": TOOLS}
    with served(engine) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as api:
        whole = api.chat.completions.create(**fields).choices[0]
        assert [call.function.name for call in whole.message.tool_calls or []] == ["move", "stop"]
        with api.chat.completions.stream(**fields) as events:
            final = events.get_final_completion().choices[0]
    assert final.finish_reason == whole.finish_reason == "tool_calls"
    assert [call.function.arguments for call in final.message.tool_calls or []] == ['{"x": 3, "y": "ab"}', "{}"]
