"""The draft tree in a traced stream: what was verified, what was kept, and that it changes nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from app.engine.engine import Engine, EngineConfig
from app.engine.events import SOURCE_NAMES, Delta, Event
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from racer.drafter import RacerConfig
from tests.api.support import BASE, BOTH, CHAT, COMPLETIONS, client_of, stream, text_of
from tests.engine.drafting import FLAT
from tests.tiny import loaded, tiny_engine

BODY: dict[str, Any] = {"prompt": "abcabcabcabc", "max_tokens": 48, "temperature": 0, "ignore_eos": True}
TRACE = {"trace": True}


@pytest.fixture(scope="module")
def tiny() -> Iterator[TestClient]:
    engine = Engine(loaded(), EngineConfig(max_nodes=16, prior_rows=0, cost_curve=FLAT, racer=RacerConfig(policy="paper")))
    with client_of(lambda: engine) as client:
        yield client


def traced(payloads: list[Any]) -> list[dict[str, Any]]:
    return [choice for payload in payloads if payload != "[DONE]" for choice in payload["choices"] if choice.get("trace")]


def test_each_step_of_the_engine_shows_its_tree(tiny: TestClient) -> None:
    payloads = stream(tiny, COMPLETIONS, {**BODY, "speculative": TRACE})
    first, *steps = traced(payloads)
    figures = payloads[-2]["metrics"]["speculative_decoding"]
    assert "draft_tree" not in first  # the prefill chose that token
    assert len(steps) == figures["num_spec_steps"] > 1
    root = first["trace"][-1]["text"]
    drafted = accepted = 0
    for step in steps:
        check_tree(step["draft_tree"], step["trace"], root)
        root = step["trace"][-1]["text"]
        drafted += len(step["draft_tree"]["tokens"]) - 1
        accepted += len(step["draft_tree"]["accepted"]) - 1
    assert (drafted, accepted) == (figures["num_draft_tokens"], figures["num_accepted_draft_tokens"])
    assert accepted > 0


def check_tree(tree: dict[str, Any], trace: list[dict[str, Any]], root: str) -> None:
    tokens, parents, sources, accepted = (tree[name] for name in ("tokens", "parents", "sources", "accepted"))
    assert len(tokens) == len(parents) == len(sources) <= 16
    assert (tokens[0], parents[0], sources[0], accepted[0]) == (root, -1, "target", 0)
    assert all(0 <= parent < node for node, parent in enumerate(parents[1:], start=1))
    assert set(sources) <= set(SOURCE_NAMES)
    assert [parents[node] for node in accepted[1:]] == accepted[:-1]  # a path from the root
    kept = [(token["text"], token["source"]) for token in trace[:-1]]
    assert [(tokens[node], sources[node]) for node in accepted[1:]] == kept


def test_a_plain_step_has_the_root_alone(tiny: TestClient) -> None:
    _, *steps = traced(stream(tiny, COMPLETIONS, {**BODY, "speculative": {"trace": True, "drafter": "none"}}))
    assert len(steps) == BODY["max_tokens"] - 1
    for step in steps:
        assert step["draft_tree"]["parents"] == [-1]
        assert step["draft_tree"]["accepted"] == [0]


def test_the_engine_builds_no_tree_that_nobody_asked_for() -> None:
    for trace in (False, True):
        deltas: list[Delta] = []
        ended = threading.Event()

        def hear(event: Event, deltas: list[Delta] = deltas, ended: threading.Event = ended) -> None:
            if isinstance(event, Delta):
                deltas.append(event)
            else:
                ended.set()

        with tiny_engine(cost_curve=FLAT) as engine:
            request = GenerationRequest(
                (5, 6, 7), SamplingParams(0.0), StopParams(20, ignore_eos=True), SpeculationParams(trace=trace)
            )
            engine.submit(request, hear)
            assert ended.wait(30.0)
        assert [delta.tree is not None for delta in deltas] == [False, *([trace] * (len(deltas) - 1))]
        assert len(deltas) > 1


@BOTH
def test_no_tree_unless_asked(client: TestClient, path: str) -> None:
    for speculative in ({}, {"trace": False}):
        payloads = stream(client, path, {**BASE[path], "temperature": 0, "speculative": speculative})
        assert not any("draft_tree" in choice for payload in payloads[:-1] for choice in payload["choices"])


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(max_tokens=1, stops=[])  # nothing but the first token, which no step made
@given(max_tokens=st.integers(1, 40), stops=st.lists(st.sampled_from(["e", " t", "東", "👩‍👩", "it's a"]), max_size=2))
def test_held_back_text_stays_right_and_the_latest_tree_comes_with_it(
    client: TestClient, max_tokens: int, stops: list[str]
) -> None:
    body = {**BASE[CHAT], "temperature": 0, "max_tokens": max_tokens, "stop": stops}
    whole = client.post(CHAT, json=body).json()
    payloads = stream(client, CHAT, {**body, "speculative": TRACE})
    assert text_of(payloads) == whole["choices"][0]["message"]["content"]
    chunks = traced(payloads)
    for place, chunk in enumerate(chunks):
        last_step = [token["source"] for token in chunk["trace"]]
        if place == 0 and last_step == ["target"]:
            assert "draft_tree" not in chunk
            continue
        tree = chunk["draft_tree"]
        kept = [tree["tokens"][node] for node in tree["accepted"][1:]]
        texts = [token["text"] for token in chunk["trace"][:-1]]
        assert texts[len(texts) - len(kept) :] == kept
