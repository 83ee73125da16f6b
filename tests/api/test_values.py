"""Nulls, types and ranges. After every refusal the next request works."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from app.engine.sampling.choose import is_greedy
from tests.api.support import BASE, BOTH, CHAT, COMPLETIONS, STREAMS, ask, check_alive, check_error
from tests.synthetic import SyntheticEngine

OPTIONAL = [
    "model",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "stream",
    "stream_options",
    "speculative",
    "n",
    "best_of",
    "suffix",
    "logprobs",
    "top_logprobs",
    "echo",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "response_format",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "audio",
    "modalities",
    "web_search_options",
    "user",
    "metadata",
    "store",
    "service_tier",
    "parallel_tool_calls",
    "safety_identifier",
    "prompt_cache_key",
    "verbosity",
    "reasoning_effort",
    "prediction",
]


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


BAD_VALUES: dict[str, list[Any]] = {
    "max_tokens": [0, -1, "5", 1.5, 5.0, True, 1e12, [], {}],
    "max_completion_tokens": [0, -1, "5", 1.5, True],
    "temperature": [2.5, -1, -1e-9, "hot", True, [], 10**400],
    "top_p": [0, 0.0, 1.5, -0.1, "1", False],
    "top_k": [-2, 1.5, "1", True],
    "min_p": [-0.1, 1.1, "0"],
    "seed": [1.5, "1", True, 2**63, -(2**63) - 1],
    "stream": ["true", 1, []],
    "ignore_eos": ["true", 1],
    "model": [5, ["synthetic"], {}],
    "speculative": [5, [], "racer", True],
    "stream_options": [5, [], {"include_usage": True}],
}


@BOTH
@STREAMS
@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD_VALUES.items() for value in values])
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
    assert is_greedy(engine.requests[-1].sampling)


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


def test_chat_logprobs_are_read_by_openai_python(client: TestClient) -> None:
    body = {**BASE[CHAT], "temperature": 0, "max_tokens": 9, "logprobs": True, "top_logprobs": 2}
    choice = client.post(CHAT, json=body).json()["choices"][0]
    assert choice["logprobs"]["refusal"] is None
    assert len(choice["logprobs"]["content"]) == 9
    for entry in choice["logprobs"]["content"]:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert bytes(entry["bytes"]).decode("utf-8", "replace")
    assert client.post(CHAT, json={**body, "logprobs": False, "top_logprobs": 0}).json()["choices"][0]["logprobs"] is None
