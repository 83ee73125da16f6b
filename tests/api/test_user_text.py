"""The user's own text: lone surrogates are refused, and no error repeats a word."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
from starlette.testclient import TestClient

from app.assembly import load_engine
from app.engine.errors import ModelLoadError
from app.text.codec import TextCodec
from tests.api.support import BASE, BOTH, CHAT, COMPLETIONS, check_alive, check_error, client_of, new_settings
from tests.structured import EOS, json_engine, json_tokenizer


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, '{"prompt": "\\ud83d"}', "prompt"),
        (COMPLETIONS, '{"prompt": ["a", "\\uDC00x"]}', "prompt.1"),
        (COMPLETIONS, '{"prompt": "a", "stop": ["\\ud83d"]}', "stop.0"),
        (COMPLETIONS, '{"prompt": "a", "user": "\\ud83d"}', "user"),
        (COMPLETIONS, '{"prompt": "a", "metadata": {"a": "\\ud83d"}}', "metadata.a"),
        (COMPLETIONS, '{"prompt": "a", "metadata": {"\\ud83d": "a"}}', "metadata"),
        (COMPLETIONS, '{"prompt": "a", "\\ud83d": "a"}', None),
        (COMPLETIONS, '{"prompt": "a", "model": "\\ud83d"}', "model"),
        (CHAT, '{"messages": [{"role": "user", "content": "\\ud83d"}]}', "messages.0.content"),
        (
            CHAT,
            '{"messages": [{"role": "user", "content": [{"type": "text", "text": "\\ud83d"}]}]}',
            "messages.0.content.0.text",
        ),
        (CHAT, '{"messages": [{"role": "\\ud83d", "content": "a"}]}', "messages.0.role"),
        ("/tokenize", '{"prompt": "\\ud83d"}', "prompt"),
    ],
)
def test_lone_surrogates(client: TestClient, path: str, body: str, param: str | None) -> None:
    reply = client.post(path, content=body, headers={"Content-Type": "application/json"})
    check_error(reply, 400, param)
    check_alive(client)


def test_whole_pairs_are_text(client: TestClient) -> None:
    reply = client.post("/tokenize", content='{"prompt": "\\ud83d\\ude00"}', headers={"Content-Type": "application/json"})
    assert reply.json()["count"] == 5


SECRET = "S3CR3T-T3XT"


@BOTH
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": SECRET},
        {"stop": [SECRET, 5]},
        {"stop": [SECRET] * 20},
        {"max_tokens": {SECRET: SECRET}},
        {"model": SECRET},
        {"speculative": {"drafter": SECRET}},
        {"response_format": {"type": SECRET}},
        {"tool_choice": SECRET},
        {"stop_token_ids": [SECRET]},
        {"messages": [{"role": SECRET, "content": SECRET}], "prompt": [SECRET, 5]},
        {"messages": [{"role": "user", "content": [{"type": SECRET}]}], "prompt": {SECRET: 5}},
        {"messages": [{"role": "user", "content": SECRET * 1000}], "prompt": SECRET * 1000, "max_tokens": 4096},
    ],
)
def test_errors_never_repeat_the_user(client: TestClient, path: str, fields: dict[str, Any]) -> None:
    allowed = {"messages", "prompt"} - BASE[path].keys()
    body = {**BASE[path], **{name: value for name, value in fields.items() if name not in allowed}}
    reply = client.post(path, json=body)
    assert reply.status_code in (400, 404), reply.text
    check_error(reply, reply.status_code)
    assert SECRET not in reply.text


@pytest.mark.parametrize("parse", [False, True])
def test_a_name_of_a_control_token_ends_no_turn(parse: bool) -> None:
    """With a real tokenizer: the chat and /tokenize read the same, and the setting brings the old way back."""
    with json_engine() as engine:
        engine.codec = TextCodec(json_tokenizer(), EOS, parse_special_tokens=parse)
        with client_of(lambda: engine) as client:
            messages = [{"role": "user", "content": "a</s>b"}]
            read = client.post("/tokenize", json={"messages": messages}).json()
            usage = client.post(CHAT, json={"messages": messages, "max_tokens": 1}).json()["usage"]
            raw = client.post("/tokenize", json={"prompt": "a</s>b"}).json()["tokens"]
    assert usage["prompt_tokens"] == read["count"]
    assert read["tokens"].count(2) == parse
    assert raw.count(2) == 1


def test_the_setting_reaches_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def load(*_: Any, **options: Any) -> NoReturn:
        asked.append(options)
        raise ModelLoadError("enough")

    monkeypatch.setattr("app.engine.engine.load_model", load)
    for value in (False, True):
        with pytest.raises(ModelLoadError, match="enough"):
            load_engine(new_settings(parse_special_tokens=value))
    assert [options["parse_special_tokens"] for options in asked] == [False, True]
