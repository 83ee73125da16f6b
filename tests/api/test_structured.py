"""response_format over HTTP: valid JSON every time with speculation on, refused where it cannot be kept to."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field
from starlette.testclient import TestClient

from app.main import create_app
from tests.api.support import (
    BOTH,
    CHAT,
    COMPLETIONS,
    HELLO,
    ask,
    check_error,
    client_of,
    new_settings,
    serving,
    stream,
    text_of,
)
from tests.engine.drafting import FLAT
from tests.structured import json_engine
from tests.waiting import wait_until

PLAIN = {"drafter": "none"}


@pytest.fixture(scope="module")
def json_client() -> Iterator[TestClient]:
    """A tiny model behind the whole service; every draft pays, so that many are made."""
    with json_engine(cost_curve=FLAT, max_running=4) as engine, client_of(lambda: engine) as client:
        yield client


def json_schema(schema: dict[str, Any], name: str = "answer") -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}


def random_schema(draw: random.Random, depth: int = 2) -> dict[str, Any]:
    """A schema whose values are short, so that every answer ends."""
    kinds = ["integer", "string", "enum", "boolean", "pattern", "const"] + ["object", "array", "anyOf"] * (depth > 0)
    match draw.choice(kinds):
        case "integer":
            low = draw.randint(-30, 30)
            return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 200)}
        case "string":
            return {"type": "string", "minLength": draw.randint(0, 2), "maxLength": draw.randint(2, 6)}
        case "enum":
            return {"enum": draw.sample(["ab", "abc", "a b", 1, 12, 1.5, True, None, ["ab"], {"a": 1}], draw.randint(1, 4))}
        case "boolean":
            return {"type": ["boolean", "null"]}
        case "pattern":
            return {"type": "string", "pattern": draw.choice(["^a{1,3}$", "^[0-9]{2}-[a-c]$", "^(x|yz)$"])}
        case "const":
            return {"const": draw.choice(["ab", 0, False])}
        case "array":
            low = draw.randint(0, 1)
            return {
                "type": "array",
                "items": random_schema(draw, depth - 1),
                "minItems": low,
                "maxItems": low + draw.randint(0, 2),
            }
        case "anyOf":
            return {"anyOf": [random_schema(draw, depth - 1), random_schema(draw, 0)]}
    names = draw.sample(["a", "b", "ab", "name", "x_1"], draw.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: random_schema(draw, depth - 1) for name in names},
        "required": names[: draw.randint(0, len(names))],
        "additionalProperties": False,
    }


def numbered_schema(number: int) -> dict[str, Any]:
    """One that no other number has."""
    properties = {"id": {"const": number}, "value": random_schema(random.Random(number))}
    return {"type": "object", "properties": properties, "required": ["id", "value"], "additionalProperties": False}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value matches a schema of `random_schema`."""
    match schema:
        case {"enum": values}:
            return any(type(value) is type(item) and value == item for item in values)
        case {"const": item}:
            return type(value) is type(item) and value == item
        case {"anyOf": branches}:
            return any(fits(value, branch) for branch in branches)
        case {"type": "integer"}:
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case {"type": "string", "maxLength": most}:
            return isinstance(value, str) and schema["minLength"] <= len(value) <= most
        case {"type": "string"}:
            return isinstance(value, str) and 1 <= len(value) <= 4
        case {"type": ["boolean", "null"]}:
            return value is None or isinstance(value, bool)
        case {"type": "array"}:
            inside = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
            return inside and all(fits(item, schema["items"]) for item in value)
        case {"type": "object", "properties": properties}:
            known = isinstance(value, dict) and set(schema["required"]) <= set(value) <= set(properties)
            return known and all(fits(item, properties[name]) for name, item in value.items())
    raise AssertionError(schema)


@pytest.mark.slow
def test_two_hundred_schemas_four_at_a_time(json_client: TestClient) -> None:
    """Valid and fitting JSON whenever the answer ended by itself, the same as without speculation."""
    schemas = [numbered_schema(number) for number in range(200)]

    def answer(number: int) -> tuple[str, str, int]:
        path = CHAT if number % 4 else COMPLETIONS
        fields = {
            "response_format": json_schema(schemas[number]),
            "temperature": 0 if number % 2 else 1.0,
            "seed": number,
            "max_tokens": 120,
        }
        whole, plain = ask(json_client, path, **fields), ask(json_client, path, **fields, speculative=PLAIN)
        assert whole.status_code == 200, whole.text
        choice, other = whole.json()["choices"][0], plain.json()["choices"][0]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert text == (other["message"]["content"] if path == CHAT else other["text"])
        accepted = whole.json()["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"]
        return text, choice["finish_reason"], accepted

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(answer, range(200)))
    ended = [(text, schema) for (text, reason, _), schema in zip(answers, schemas, strict=True) if reason == "stop"]
    assert len(ended) > 190
    for text, schema in ended:
        assert fits(json.loads(text), schema), (text, schema)
    assert sum(accepted for _, _, accepted in answers) > 100


@pytest.mark.slow
def test_any_json_object_fifty_times(json_client: TestClient) -> None:
    def answer(number: int) -> dict[str, Any]:
        fields = {"response_format": {"type": "json_object"}, "seed": number, "max_tokens": 60, "min_p": 0.1}
        return dict(ask(json_client, CHAT, **fields).json()["choices"][0])

    with ThreadPoolExecutor(4) as pool:
        choices = list(pool.map(answer, range(50)))
    ended = [choice["message"]["content"] for choice in choices if choice["finish_reason"] == "stop"]
    assert ended
    assert all(isinstance(json.loads(text), dict) for text in ended)


@BOTH
def test_streamed_as_whole(json_client: TestClient, path: str) -> None:
    fields = {"response_format": json_schema(random_schema(random.Random(5))), "seed": 3, "max_tokens": 100, "n": 2}
    whole = ask(json_client, path, **fields).json()["choices"]
    payloads = stream(json_client, path, {**({"messages": HELLO} if path == CHAT else {"prompt": "Hello"}), **fields})
    for choice in whole:
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert text_of(payloads, choice["index"]) == text


@BOTH
@pytest.mark.parametrize(
    ("value", "param"),
    [
        (5, "response_format"),
        ({}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "text", "json_schema": {"name": "a", "schema": {}}}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a" * 65, "schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": []}}, "response_format.json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": 1}},
            "response_format.json_schema.strict",
        ),
        (json_schema({"properties": {"a": {"not": {}}}}), "response_format.json_schema.schema"),
        (json_schema({"type": "my secret"}), "response_format.json_schema.schema"),
        (json_schema({"$ref": "#"}), "response_format.json_schema.schema"),
        (json_schema({"enum": ["my secret" * 20_000]}), "response_format.json_schema.schema"),
    ],
)
def test_refused_before_the_first_byte(client: TestClient, path: str, value: Any, param: str) -> None:
    for streamed in (False, True):
        error = check_error(ask(client, path, response_format=value, stream=streamed), 400)
        assert error["param"].startswith(param)
        assert "secret" not in error["message"]


@BOTH
def test_formats_and_the_end(client: TestClient, path: str) -> None:
    check_error(ask(client, path, response_format={"type": "json_object"}, ignore_eos=True), 400, "ignore_eos")
    assert ask(client, path, response_format={"type": "text"}, ignore_eos=True, max_tokens=5).status_code == 200
    assert ask(client, path, response_format=None).status_code == 200


# -- openai-python -------------------------------------------------------------------------------------------------------


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    colour: Literal["red", "blue"]
    size: int = Field(ge=0, le=9)
    inner: list[bool] | None


def test_openai_parse() -> None:
    with json_engine(cost_curve=FLAT) as engine:
        app = create_app(new_settings(), lambda: engine)
        with serving(app) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as api:
            wait_until(lambda: app.state.service.status() is not None)
            parsed = 0
            for seed in range(6):
                fields: dict[str, Any] = {"model": "tiny", "messages": HELLO, "seed": seed, "max_tokens": 150}
                try:
                    done = api.chat.completions.parse(**fields, response_format=Answer)
                except openai.LengthFinishReasonError:  # an array of the schema has no bound
                    continue
                answer = done.choices[0].message.parsed
                assert isinstance(answer, Answer)
                parsed += 1
                with api.chat.completions.stream(**fields, response_format=Answer) as events:
                    assert events.get_final_completion().choices[0].message.parsed == answer
            assert parsed
