"""Odd values and odd prompts on the real engine: answered or refused, and the next request gets the normal answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.api.support import COMPLETIONS, check_error, client_of
from tests.engine.drafting import FLAT
from tests.models import VOCABULARY
from tests.tiny import tiny_engine

BODY: dict[str, Any] = {"prompt": "ab", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with tiny_engine(max_nodes=8, cost_curve=FLAT) as engine, client_of(lambda: engine) as client:
        yield client


def text(client: TestClient, **fields: Any) -> str:
    reply = client.post(COMPLETIONS, json={**BODY, **fields})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


@pytest.fixture(scope="module")
def normal(client: TestClient) -> str:
    return text(client, speculative={"drafter": "none"})


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 5e-324])
def test_tiny_temperatures_are_greedy_and_poison_nothing(client: TestClient, normal: str, temperature: float) -> None:
    assert text(client, temperature=temperature) == normal
    assert text(client) == normal


@pytest.mark.parametrize("fields", [{"temperature": 2}, {"top_p": 1e-9}, {"min_p": 1}, {"top_k": 1}, {"top_k": 2**40}])
def test_values_at_the_edge_are_answered_the_same_with_and_without_speculation(
    client: TestClient, normal: str, fields: dict[str, Any]
) -> None:
    sampled = {"temperature": 1, "seed": 3, **fields}
    assert text(client, **sampled) == text(client, **sampled, speculative={"drafter": "none"})
    assert text(client) == normal


@pytest.mark.parametrize("value", [0, -1, "5", 1.5, True, 10**12])
def test_budgets_that_cannot_be(client: TestClient, normal: str, value: Any) -> None:
    for stream in (False, True):
        check_error(client.post(COMPLETIONS, json={**BODY, "max_tokens": value, "stream": stream}), 400)
    assert text(client) == normal


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], [-1], [VOCABULARY], [1, "a"], [True], [2**70], [[1], [VOCABULARY]]])
def test_prompts_that_cannot_be(client: TestClient, normal: str, prompt: Any) -> None:
    check_error(client.post(COMPLETIONS, json={**BODY, "prompt": prompt}), 400, "prompt")
    assert text(client) == normal


def test_lists_of_prompts_answer_each_as_if_alone(client: TestClient) -> None:
    reply = client.post(COMPLETIONS, json={**BODY, "prompt": [[0], [1, 2], [VOCABULARY - 1]]})
    assert reply.status_code == 200, reply.text
    choices = sorted(reply.json()["choices"], key=lambda choice: choice["index"])
    assert [choice["text"] for choice in choices] == [text(client, prompt=ids) for ids in ([0], [1, 2], [VOCABULARY - 1])]
    assert reply.json()["usage"]["prompt_tokens"] == 4
