"""What a prompt and a message may be."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from app.api.messages import Message
from tests.api.support import CHAT, COMPLETIONS, HELLO, STREAMS, check_alive, check_error, client_of, text_of
from tests.api.support import stream as streamed
from tests.synthetic import SyntheticCodec, SyntheticEngine


@STREAMS
@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""], [[1], []]])
def test_empty_prompts(client: TestClient, stream: bool, prompt: Any) -> None:
    error = check_error(client.post(COMPLETIONS, json={"prompt": prompt, "stream": stream}), 400, "prompt")
    assert "empty" in error["message"]


@pytest.mark.parametrize(
    "prompt",
    [[-1], [260], [[1], [260]], [1, "a"], ["a", 1], [True], [1.0], [None], ["a", [1]], [[1], 2], [[True]], 5, {}, ["a"] * 65],
)
def test_bad_prompts(client: TestClient, prompt: Any) -> None:
    check_error(client.post(COMPLETIONS, json={"prompt": prompt}), 400, "prompt")
    check_alive(client)


@STREAMS
@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ([0], [(0,)]),
        ([[0], [1, 2]], [(0,), (1, 2)]),
        (["a", "b"], [(256, 97), (256, 98)]),
        ("a", [(256, 97)]),
        ([259], [(259,)]),
    ],
)
def test_prompts_keep_their_order(
    client: TestClient, engine: SyntheticEngine, stream: bool, prompt: Any, ids: list[tuple[int, ...]]
) -> None:
    body = {"prompt": prompt, "temperature": 0}
    single = [client.post(COMPLETIONS, json={**body, "prompt": list(one)}).json()["choices"][0]["text"] for one in ids]
    del engine.requests[:]
    if stream:
        chunks = streamed(client, COMPLETIONS, body)
        texts = [text_of(chunks, index) for index in range(len(ids))]
    else:
        reply = client.post(COMPLETIONS, json=body).json()
        assert [choice["index"] for choice in reply["choices"]] == list(range(len(ids)))
        texts = [choice["text"] for choice in reply["choices"]]
        assert reply["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert [request.prompt_ids for request in engine.requests] == ids
    assert texts == single


ROLES = ("system", "user", "assistant", "tool", "developer")
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize("role", ROLES)
def test_text_parts_are_joined_in_order(client: TestClient, role: str) -> None:
    parts = [{"type": "text", "text": "one, "}, {"type": "text", "text": "two"}]
    counts = [
        client.post("/tokenize", json={"messages": [{"role": role, "content": content}]}).json()["tokens"]
        for content in (parts, "one, two")
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "content.0.type"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}, "content.1.type"),
        ({"role": "user", "content": [{"type": "text"}]}, "content.0.text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "content.0.text"),
        ({"role": "user", "content": ["a"]}, "content.0"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": {}}, "content"),
        ({"role": "user"}, "content"),
        ({"role": "x", "content": "a"}, "role"),
        ({"role": 5, "content": "a"}, "role"),
        ({"content": "a"}, "role"),
        ({"role": "user", "content": "a", "foo": 1}, "foo"),
        ({"role": "user", "content": "a", "tool_calls": [CALL]}, "tool_calls"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "tool_calls.0.function"),
        ({"role": "assistant", "content": "a", "audio": {"id": "x"}}, "audio"),
        ({"role": "assistant", "content": "a", "function_call": {"name": "f", "arguments": "{}"}}, "function_call"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "foo": 1}]}, "content.0"),
        ({"role": "assistant", "tool_calls": [{**CALL, "foo": 1}]}, "tool_calls.0.foo"),
    ],
)
def test_bad_messages(client: TestClient, message: Any, param: str) -> None:
    reply = client.post(CHAT, json={"messages": [*HELLO, message]})
    check_error(reply, 400, f"messages.1.{param}")


@pytest.mark.parametrize("messages", [5, "hello", {}, [5], ["hello"], [[]], [None]])
def test_messages_of_a_wrong_type(client: TestClient, messages: Any) -> None:
    error = check_error(client.post(CHAT, json={"messages": messages}), 400)
    assert error["param"].startswith("messages")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "a"}],
        [{"role": "assistant", "content": "a"}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
        [{"role": "assistant", "content": None}],
        [{"role": "assistant"}],
        [{"role": "user", "content": None}],
        [{"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "a", "tool_call_id": "c1"}],
        [{"role": "tool", "content": "a"}],
        [{"role": "user", "content": "a", "name": "b"}],
        [{"role": "assistant", "content": "a", "refusal": None, "annotations": [], "audio": None, "tool_calls": None}],
    ],
)
def test_good_messages(client: TestClient, messages: Any) -> None:
    reply = client.post(CHAT, json={"messages": messages, "max_tokens": 1})
    assert reply.status_code == 200, reply.text


REPLAYED: list[dict[str, Any]] = [
    {"content": "x", "parsed": {"a": 1}},
    {"content": "x", "provider_specific_fields": {"refusal": None}},
    {"content": "x", "reasoning": "hm", "reasoning_details": [{"type": "reasoning.text"}], "thinking_blocks": []},
    {"content": "x", "reasoning_content": "hm"},
    {"content": "x", "reasoning_content": ["hm"]},
    {"content": "x", "refusal": "no", "annotations": [{"type": "url_citation"}], "audio": None, "function_call": None},
    {"content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}, "annotations": []}]},
    {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "x"}, {"type": "refusal", "refusal": "no"}]},
]


@pytest.mark.parametrize("extra", REPLAYED)
def test_what_clients_write_into_an_answer_does_not_come_back(client: TestClient, extra: dict[str, Any]) -> None:
    def tokens(message: dict[str, Any]) -> Any:
        reply = client.post(CHAT, json={"messages": [*HELLO, {"role": "assistant", **message}, *HELLO], "max_tokens": 1})
        assert reply.status_code == 200, reply.text
        return reply.json()["usage"]["prompt_tokens"]

    assert tokens(extra) == tokens({"content": "x"})


def test_what_clients_write_into_calls_does_not_come_back(client: TestClient, engine: SyntheticEngine) -> None:
    function = {"name": "f", "arguments": "{}", "parsed_arguments": {}}
    noted = {**CALL, "function": function, "index": 0, "provider_specific_fields": {}, "extra_content": {"a": 1}}
    for call in (noted, CALL):
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        answer = {"role": "tool", "tool_call_id": "c1", "content": "1"}
        reply = client.post(CHAT, json={"messages": [*HELLO, message, answer], "max_tokens": 1})
        assert reply.status_code == 200, reply.text
    assert engine.requests[0].prompt_ids == engine.requests[1].prompt_ids


@pytest.mark.parametrize("role", ["assistant", "user"])
def test_only_templates_see_the_thoughts_of_an_earlier_answer(role: str) -> None:
    message = Message.model_validate({"role": role, "content": "x", "reasoning_content": "hm", "reasoning": "other"})
    thoughts = {"reasoning_content": "hm"} if role == "assistant" else {}
    assert message.for_template() == {"role": role, "content": "x", **thoughts}


def test_variables_for_the_template(client: TestClient, engine: SyntheticEngine) -> None:
    body = {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}}
    plain = client.post("/tokenize", json={"messages": HELLO}).json()["tokens"]
    told = client.post("/tokenize", json=body).json()["tokens"]
    assert client.post(CHAT, json={**body, "max_tokens": 1}).status_code == 200
    assert list(engine.requests[-1].prompt_ids) == told != plain
    assert bytes(told[len(plain) :]) == b'{"enable_thinking": false}'


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
@pytest.mark.parametrize(
    ("options", "param"),
    [
        *(({name: "x"}, f".{name}") for name in ("messages", "tools", "add_generation_prompt", "tokenize", "chat_template")),
        ({"enable_thinking": False, "bos_token": "x"}, ".bos_token"),
        ({"no name": 1}, ""),
        ({f"v{place}": 1 for place in range(33)}, ""),
        ([], ""),
        ("x", ""),
    ],
)
def test_variables_that_are_the_servers(client: TestClient, path: str, options: Any, param: str) -> None:
    reply = client.post(path, json={"messages": HELLO, "chat_template_kwargs": options})
    check_error(reply, 400, f"chat_template_kwargs{param}")


def test_variables_go_with_messages(client: TestClient) -> None:
    reply = client.post("/tokenize", json={"prompt": "a", "chat_template_kwargs": {"a": 1}})
    check_error(reply, 400, "chat_template_kwargs")
    check_error(client.post(COMPLETIONS, json={"prompt": "a", "chat_template_kwargs": {"a": 1}}), 400, "chat_template_kwargs")


def test_two_thousand_messages() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}] * 1000
    engine = SyntheticEngine(max_context=100_000)
    with client_of(lambda: engine) as client:
        reply = client.post(CHAT, json={"messages": messages, "max_tokens": 1})
        assert reply.status_code == 200, reply.text
        assert reply.json()["usage"]["prompt_tokens"] == client.post("/tokenize", json={"messages": messages}).json()["count"]


def test_nothing_of_a_message_is_lost(client: TestClient) -> None:
    def count(*messages: dict[str, Any]) -> int:
        return int(client.post(CHAT, json={"messages": messages, "max_tokens": 1}).json()["usage"]["prompt_tokens"])

    silent = count({"role": "assistant"})
    assert count({"role": "assistant", "content": None}) == silent
    assert count({"role": "assistant", "content": ""}) == silent
    assert count({"role": "assistant", "content": None, "tool_calls": [CALL]}) > silent


def test_template_refusal(client: TestClient, engine: SyntheticEngine) -> None:
    engine.codec = SyntheticCodec(chat_error="Roles must alternate.")  # type: ignore[assignment]
    for stream in (False, True):
        error = check_error(client.post(CHAT, json={"messages": HELLO, "stream": stream}), 400, "messages")
        assert "alternate" in error["message"]
    engine.codec = SyntheticCodec(has_chat_template=False)  # type: ignore[assignment]
    check_error(client.post(CHAT, json={"messages": HELLO}), 400, "messages")
    assert client.post(COMPLETIONS, json={"prompt": "a"}).status_code == 200
