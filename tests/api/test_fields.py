"""Unsupported, ignored and unknown fields, and the speculative object."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.api.support import BOTH, CHAT, COMPLETIONS, STREAMS, ask, check_error
from tests.synthetic import SyntheticEngine

UNSUPPORTED: list[tuple[str, Any]] = [
    *(("n", value) for value in (0, 1000, -1, "1", True, 1.5)),
    *(("presence_penalty", value) for value in (2.5, -3, False, "0")),
    ("frequency_penalty", 3),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1.5),
    ("min_tokens", -1),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"999999": 1}),
    ("logit_bias", {"5": 101}),
    ("logit_bias", {"5": "1"}),
    ("logit_bias", {"5": True}),
    ("logit_bias", []),
    *(("session_id", value) for value in ("", "two words", "x" * 129, 5)),
]
UNSUPPORTED_CHAT: list[tuple[str, Any]] = [
    ("functions", [{"name": "f"}]),
    ("function_call", {"name": "f"}),
    ("audio", {"voice": "x"}),
    ("modalities", ["text", "audio"]),
    ("web_search_options", {}),
    ("logprobs", 0),
    ("top_logprobs", 3),
    ("top_logprobs", 21),
    ("skip_special_tokens", False),
    ("continue_final_message", True),
    ("include_reasoning", 1),
    ("tool_choice", "any"),
    ("tool_choice", {"type": "any"}),
]
UNSUPPORTED_COMPLETION: list[tuple[str, Any]] = [
    ("best_of", 2),
    ("echo", 1),
    ("suffix", "end"),
    ("logprobs", 21),
    ("logprobs", True),
    ("logprobs", -1),
    ("skip_special_tokens", False),
    ("include_stop_str_in_output", True),
    ("include_reasoning", True),
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


@pytest.mark.parametrize("choice", ["any", {"type": "any"}])
def test_another_servers_word_for_required(client: TestClient, choice: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    error = check_error(ask(client, CHAT, tools=tools, tool_choice=choice), 400, "tool_choice")
    assert "'required'" in error["message"]


def test_unsupported_fields_without_effect(client: TestClient) -> None:
    shared = {
        "n": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "repetition_penalty": 1.0,
        "min_tokens": 0,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "include_stop_str_in_output": False,
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
        "add_generation_prompt": True,
        "continue_final_message": False,
        "chat_template_kwargs": {},
        "include_reasoning": True,
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
        ({"verifier": "x"}, "verifier"),
        ({"max_nodes": 0}, "max_nodes"),
        ({"max_nodes": -1}, "max_nodes"),
        ({"max_nodes": 25}, "max_nodes"),
        ({"max_nodes": "8"}, "max_nodes"),
        ({"max_nodes": True}, "max_nodes"),
        ({"trace": 1}, "trace"),
        ({"verifier": "exact", "lambda": 6}, "lambda"),
        ({"verifier": "exact", "tau": 0.01}, "tau"),
        ({"verifier": "csd", "lambda": -1}, "lambda"),
        ({"verifier": "csd", "tau": 0}, "tau"),
        ({"verifier": "csd", "tau": 1.5}, "tau"),
    ],
)
def test_bad_speculation(client: TestClient, path: str, speculative: Any, param: str) -> None:
    error = check_error(ask(client, path, speculative=speculative), 400, f"speculative.{param}")
    assert speculative.get("verifier") != "exact" or "csd" in error["message"]


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
