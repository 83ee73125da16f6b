"""What requests may hold: scenarios J1 to J6. After every refusal the next request works."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.api.support import CHAT, COMPLETIONS, HELLO, check_error, text_of
from tests.api.support import stream as streamed
from tests.synthetic import SyntheticCodec, SyntheticEngine

BASE: dict[str, dict[str, Any]] = {CHAT: {"messages": HELLO}, COMPLETIONS: {"prompt": "Hello"}}
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
STREAMS = pytest.mark.parametrize("stream", [False, True])
OPTIONAL = (
    "model max_tokens max_completion_tokens temperature top_p top_k min_p seed stop stop_token_ids ignore_eos stream "
    "stream_options speculative n best_of suffix logprobs top_logprobs echo presence_penalty frequency_penalty logit_bias "
    "response_format tools tool_choice functions function_call audio modalities web_search_options user metadata store "
    "service_tier parallel_tool_calls safety_identifier prompt_cache_key verbosity reasoning_effort prediction"
).split()
CHAT_ONLY = {
    "top_logprobs",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "audio",
    "modalities",
    "web_search_options",
}


def ask(client: TestClient, path: str, **fields: Any) -> Any:
    return client.post(path, json={**BASE[path], **fields})


def check_alive(client: TestClient) -> None:
    reply = ask(client, CHAT, temperature=0, max_tokens=4)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] == 4


# -- J1: null and odd lists ----------------------------------------------------------------------------------------------


@BOTH
def test_null_means_absent(client: TestClient, path: str) -> None:
    for name in OPTIONAL:
        assert ask(client, path, **{name: None}).status_code == 200, name
    assert ask(client, path, **dict.fromkeys(OPTIONAL)).status_code == 200
    nested = {"speculative": {"drafter": None, "max_nodes": None}, "stream": True, "stream_options": {"include_usage": None}}
    assert ask(client, path, **nested).status_code == 200


@BOTH
@STREAMS
@pytest.mark.parametrize(
    ("stop", "param"),
    [
        ("", "stop"),
        ([""], "stop.0"),
        ([None], "stop.0"),
        (["a", 5], "stop.1"),
        (["x"] * 20, "stop"),
        (5, "stop"),
        ({}, "stop"),
    ],
)
def test_bad_stops(client: TestClient, path: str, stream: bool, stop: Any, param: str) -> None:
    check_error(ask(client, path, stop=stop, stream=stream), 400, param)
    check_alive(client)


@BOTH
def test_good_stops(client: TestClient, engine: SyntheticEngine, path: str) -> None:
    for stop, meant in (([], ()), ("x", ("x",)), (["x", "yz"], ("x", "yz")), (["x"] * 16, ("x",) * 16)):
        assert ask(client, path, stop=stop).status_code == 200
        assert engine.requests[-1].stopping.stop == meant


@BOTH
@pytest.mark.parametrize("ids", [[None], [-1], [260], [True], ["a"], 5, [1.0]])
def test_bad_stop_token_ids(client: TestClient, path: str, ids: Any) -> None:
    error = check_error(ask(client, path, stop_token_ids=ids), 400)
    assert error["param"].startswith("stop_token_ids")


def test_empty_lists(client: TestClient) -> None:
    assert ask(client, CHAT, tools=[], functions=[], stop_token_ids=[], logit_bias={}).status_code == 200
    check_error(ask(client, CHAT, messages=None), 400, "messages")
    check_error(ask(client, CHAT, messages=[]), 400, "messages")
    check_error(client.post(CHAT, json={}), 400, "messages")
    check_error(client.post(COMPLETIONS, json={}), 400, "prompt")


# -- J2: ranges and types ------------------------------------------------------------------------------------------------

BAD_VALUES: list[tuple[str, Any]] = [
    *(("max_tokens", value) for value in (0, -1, "5", 1.5, 5.0, True, 1e12, [], {})),
    *(("max_completion_tokens", value) for value in (0, -1, "5", 1.5, True)),
    *(("temperature", value) for value in (2.5, -1, -1e-9, "hot", True, [], 10**400)),
    *(("top_p", value) for value in (0, 0.0, 1.5, -0.1, "1", False)),
    *(("top_k", value) for value in (-2, 1.5, "1", True)),
    *(("min_p", value) for value in (-0.1, 1.1, "0")),
    *(("seed", value) for value in (1.5, "1", True, 2**63, -(2**63) - 1)),
    *(("stream", value) for value in ("true", 1, [])),
    *(("ignore_eos", value) for value in ("true", 1)),
    *(("model", value) for value in (5, ["synthetic"], {})),
    *(("speculative", value) for value in (5, [], "racer", True)),
    *(("stream_options", value) for value in (5, [], {"include_usage": True})),
]


@BOTH
@STREAMS
@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_bad_values(client: TestClient, path: str, stream: bool, name: str, value: Any) -> None:
    fields = {name: value} if name in ("stream", "stream_options") else {name: value, "stream": stream}
    check_error(ask(client, path, **fields), 400, name)
    check_alive(client)


@BOTH
def test_limits_that_are_allowed(client: TestClient, engine: SyntheticEngine, path: str) -> None:
    for name, value in (
        ("temperature", 0),
        ("temperature", 2),
        ("temperature", 2.0),
        ("top_p", 1),
        ("top_p", 1e-9),
        ("top_k", -1),
        ("top_k", 0),
        ("top_k", 10**9),
        ("min_p", 0),
        ("min_p", 1),
        ("seed", 0),
        ("seed", 2**63 - 1),
        ("seed", -(2**63)),
        ("max_tokens", 1),
    ):
        assert ask(client, path, **{name: value}).status_code == 200, (name, value)
    ask(client, path, top_k=-1)
    assert engine.requests[-1].sampling.top_k == 0


@BOTH
@pytest.mark.parametrize("temperature", [0, 0.0, 1e-6, 1e-30, 5e-324])
def test_tiny_temperatures_are_greedy(client: TestClient, engine: SyntheticEngine, path: str, temperature: float) -> None:
    assert ask(client, path, temperature=temperature).status_code == 200
    assert engine.requests[-1].sampling.temperature == 0.0


def test_defaults(client: TestClient, engine: SyntheticEngine) -> None:
    ask(client, COMPLETIONS)
    request = engine.requests[-1]
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.seed) == (1.0, 1.0, None)
    assert request.stopping.max_tokens == 16  # OpenAI's default
    assert request.continue_text
    ask(client, CHAT)
    assert engine.requests[-1].stopping.max_tokens is None
    assert not engine.requests[-1].continue_text


@BOTH
def test_huge_budgets_exceed_the_context(client: TestClient, path: str) -> None:
    error = check_error(ask(client, path, max_tokens=10**12), 400, code="context_length_exceeded")
    assert "4096" in error["message"]
    assert "1000000000000" in error["message"]
    error = check_error(ask(client, path, max_tokens=4096, stream=True), 400, code="context_length_exceeded")
    assert error["param"] == ("messages" if path == CHAT else "prompt")


def test_completion_default_fits_what_is_left(client: TestClient) -> None:
    reply = client.post(COMPLETIONS, json={"prompt": [1] * 4095})
    assert reply.json()["usage"]["completion_tokens"] == 1
    assert reply.json()["choices"][0]["finish_reason"] == "length"
    check_error(client.post(COMPLETIONS, json={"prompt": [1] * 4096}), 400, "prompt", "context_length_exceeded")
    check_error(client.post(COMPLETIONS, json={"prompt": [1] * 4097}), 400, "prompt", "context_length_exceeded")


# -- J3: prompts ---------------------------------------------------------------------------------------------------------


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


# -- J4: messages --------------------------------------------------------------------------------------------------------

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
        ({"role": "assistant", "content": "a", "refusal": "no"}, "refusal"),
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
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}] * 1000,
    ],
)
def test_good_messages(client: TestClient, messages: Any) -> None:
    reply = client.post(CHAT, json={"messages": messages, "max_tokens": 1})
    check_error(reply, 400, "messages", "context_length_exceeded") if len(messages) > 1000 else None
    assert len(messages) > 1000 or reply.status_code == 200, reply.text


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


# -- J5 and J6: n, unknown and unsupported fields ------------------------------------------------------------------------

UNSUPPORTED: list[tuple[str, Any]] = [
    *(("n", value) for value in (0, 2, 1000, -1, "1", True, 1.0)),
    *(("presence_penalty", value) for value in (0.5, -1, False, "0")),
    ("frequency_penalty", 1),
    ("repetition_penalty", 1.1),
    ("min_tokens", 5),
    ("logit_bias", {"5": -100}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", []),
    ("response_format", {"type": "json_object"}),
    ("response_format", {"type": "json_schema", "json_schema": {}}),
]
UNSUPPORTED_CHAT: list[tuple[str, Any]] = [
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function"}),
    ("functions", [{"name": "f"}]),
    ("function_call", {"name": "f"}),
    ("audio", {"voice": "x"}),
    ("modalities", ["text", "audio"]),
    ("web_search_options", {}),
    ("logprobs", True),
    ("logprobs", 0),
    ("top_logprobs", 3),
]
UNSUPPORTED_COMPLETION: list[tuple[str, Any]] = [
    ("best_of", 2),
    ("echo", True),
    ("suffix", "end"),
    ("logprobs", 0),
    ("logprobs", 5),
]


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        *((CHAT, name, value) for name, value in UNSUPPORTED + UNSUPPORTED_CHAT),
        *((COMPLETIONS, name, value) for name, value in UNSUPPORTED + UNSUPPORTED_COMPLETION),
    ],
)
@STREAMS
def test_unsupported_fields_with_effect(client: TestClient, path: str, name: str, value: Any, stream: bool) -> None:
    check_error(ask(client, path, **{name: value}, stream=stream), 400, name)


def test_unsupported_fields_without_effect(client: TestClient) -> None:
    shared = {
        "n": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "repetition_penalty": 1.0,
        "min_tokens": 0,
    }
    chat = {
        **shared,
        "tools": [],
        "tool_choice": "auto",
        "functions": [],
        "function_call": "none",
        "modalities": ["text"],
        "logprobs": False,
        "top_logprobs": 0,
        "parallel_tool_calls": True,
    }
    assert ask(client, CHAT, **chat).status_code == 200
    assert ask(client, COMPLETIONS, **shared, best_of=1, echo=False, suffix="", logprobs=False).status_code == 200


@BOTH
def test_harmless_fields_are_ignored(client: TestClient, path: str) -> None:
    fields: dict[str, Any] = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "flex",
        "parallel_tool_calls": False,
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "verbosity": "low",
        "reasoning_effort": "high",
        "prediction": {"type": "content", "content": "x"},
    }
    assert ask(client, path, **fields).status_code == 200
    assert ask(client, path, stream=True, stream_options={"include_obfuscation": False}).status_code == 200


@BOTH
@STREAMS
def test_unknown_fields(client: TestClient, path: str, stream: bool) -> None:
    check_error(ask(client, path, foo=1, stream=stream), 400, "foo")
    check_error(ask(client, path, speculative={"foo": 1}), 400, "speculative.foo")
    check_error(ask(client, path, stream=True, stream_options={"foo": 1}), 400, "stream_options.foo")
    strange = "my secret <b>text</b> " * 500
    reply = ask(client, path, **{strange: 1})
    check_error(reply, 400)
    assert "secret" not in reply.text


@BOTH
def test_the_newer_budget_wins(client: TestClient, path: str) -> None:
    for fields, tokens in (
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 4}, 4),
        ({"max_tokens": 3, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 3}, 3),
    ):
        assert ask(client, path, **fields).json()["usage"]["completion_tokens"] == tokens


@BOTH
@pytest.mark.parametrize(
    ("speculative", "param"),
    [
        ({"drafter": "x"}, "drafter"),
        ({"drafter": 5}, "drafter"),
        ({"verifier": "csd"}, "verifier"),
        ({"max_nodes": 0}, "max_nodes"),
        ({"max_nodes": -1}, "max_nodes"),
        ({"max_nodes": 25}, "max_nodes"),
        ({"max_nodes": "8"}, "max_nodes"),
        ({"max_nodes": True}, "max_nodes"),
        ({"trace": 1}, "trace"),
        ({"lambda": 6}, "lambda"),
        ({"tau": 0.01}, "tau"),
    ],
)
def test_bad_speculation(client: TestClient, path: str, speculative: Any, param: str) -> None:
    error = check_error(ask(client, path, speculative=speculative), 400, f"speculative.{param}")
    assert param not in ("lambda", "tau") or "csd" in error["message"]


def test_speculation_reaches_the_engine(client: TestClient, engine: SyntheticEngine) -> None:
    ask(client, CHAT, speculative={"drafter": "none", "verifier": "exact", "max_nodes": 24, "trace": True})
    asked = engine.requests[-1].speculation
    assert (asked.drafter, asked.verifier, asked.max_nodes, asked.trace) == ("none", "exact", 24, True)


@BOTH
def test_model(client: TestClient, path: str) -> None:
    assert ask(client, path, model="synthetic").status_code == 200
    assert ask(client, path).status_code == 200
    for stream in (False, True):
        error = check_error(ask(client, path, model="my secret", stream=stream), 404, "model", "model_not_found")
        assert "secret" not in error["message"]
    check_error(ask(client, path, model=""), 404, "model", "model_not_found")


# -- surrogates and echoes -----------------------------------------------------------------------------------------------


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
        (CHAT, '{"messages": [{"role": "user", "content": [{"type": "text", "text": "\\ud83d"}]}]}', "messages.0.content.0.text"),
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


def test_every_optional_field_is_known_to_one_table() -> None:
    """CHAT_ONLY fields are unknown to completions; the rest of the list is known to both."""
    from app.api.fields import COMPLETION_NO_EFFECT

    assert not CHAT_ONLY & set(COMPLETION_NO_EFFECT)
    assert json.dumps(sorted(CHAT_ONLY))
