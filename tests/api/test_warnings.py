"""What was not kept to, or not read: the request is answered, and the reply says so."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.api.support import BASE, CHAT, COMPLETIONS, STREAMS, ask
from tests.api.support import stream as streamed
from tests.synthetic import SyntheticEngine

SECRET = "my-secret-format"
UNIQUE = {"type": "array", "items": {"type": "string", "format": SECRET}, "uniqueItems": True}
OBJECT = {"type": "object", "properties": {"a": UNIQUE}}
SCHEMA_PATH = "response_format.json_schema.schema"


def shape(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": OBJECT, **function}}


def warnings(client: TestClient, path: str, stream: bool, **fields: Any) -> list[tuple[str, str]]:
    """Path and keyword of each warning."""
    if stream:
        payloads = streamed(client, path, {**BASE[path], **fields})[:-1]
        assert not any("warnings" in payload for payload in payloads[:-1])
        found = payloads[-1].get("warnings", [])
    else:
        reply = ask(client, path, **fields)
        assert reply.status_code == 200, reply.text
        found = reply.json().get("warnings", [])
    assert all(set(one) == {"message", "param", "code"} and SECRET not in one["message"] for one in found)
    return [(one["param"], one["message"].split("`")[1]) for one in found]


@STREAMS
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_schema(client: TestClient, path: str, stream: bool) -> None:
    assert warnings(client, path, stream, **shape(UNIQUE)) == [(SCHEMA_PATH, "format"), (SCHEMA_PATH, "uniqueItems")]
    assert warnings(client, path, stream, **shape({"type": "string", "format": "date"})) == []


def test_what_is_left_is_kept_to(client: TestClient, engine: SyntheticEngine) -> None:
    ask(client, CHAT, **shape(UNIQUE))
    grammar = engine.requests[-1].grammar
    assert grammar is not None
    grammar.matcher().accept(list(b'["a", "a"]'))
    with pytest.raises(ValueError, match="does not allow"):
        grammar.matcher().accept(list(b"[1]"))


@STREAMS
@pytest.mark.parametrize(
    ("fields", "places"),
    [
        ({"tools": [tool(name="g", parameters=None), tool(strict=True)]}, [1]),
        ({"tools": [tool()], "tool_choice": "required"}, [0]),
        ({"tools": [tool(name="g"), tool()], "tool_choice": {"type": "function", "function": {"name": "f"}}}, [1]),
        ({"tools": [tool()]}, []),
    ],
)
def test_parameters_of_tools(client: TestClient, stream: bool, fields: dict[str, Any], places: list[int]) -> None:
    expected = [(f"tools.{place}.function.parameters", name) for place in places for name in ("format", "uniqueItems")]
    assert warnings(client, CHAT, stream, **fields) == expected


@STREAMS
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_characters_that_the_vocabulary_cannot_spell(
    client: TestClient, engine: SyntheticEngine, path: str, stream: bool
) -> None:
    engine.codec.unspelled = "e"  # type: ignore[attr-defined]
    text, param = "secret ee", "messages" if path == CHAT else "prompt"
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": [text, "x"]}
    count = 5 if path == CHAT else 4  # the role has one
    if stream:
        payloads = streamed(client, path, {**fields, "stream_options": {"include_usage": True}})[:-1]
        usage, found = payloads[-1]["usage"], payloads[-2]["warnings"]
    else:
        reply = client.post(path, json=fields).json()
        usage, found = reply["usage"], reply["warnings"]
    assert usage["prompt_tokens_details"]["dropped_characters"] == count
    assert [(one["param"], one["code"]) for one in found] == [(param, "dropped_characters")]
    assert str(count) in found[0]["message"]
    assert "secret" not in found[0]["message"]
    engine.codec.unspelled = ""  # type: ignore[attr-defined]
    usage = client.post(path, json=fields).json()["usage"]
    assert "dropped_characters" not in usage["prompt_tokens_details"]


def test_tokenize_counts_them_too(client: TestClient, engine: SyntheticEngine) -> None:
    engine.codec.unspelled = "e"  # type: ignore[attr-defined]
    assert client.post("/tokenize", json={"prompt": "eel"}).json()["dropped_characters"] == 2
    assert client.post("/tokenize", json={"messages": [{"role": "tool", "content": "eel"}]}).json()["dropped_characters"] == 2
    assert "dropped_characters" not in client.post("/tokenize", json={"prompt": "x"}).json()
