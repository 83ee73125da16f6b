"""Models, tokenize, detokenize and the description."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.api.support import CHAT, HELLO, check_error, client_of
from tests.synthetic import SyntheticEngine


def test_models(client: TestClient) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["synthetic"]
    assert client.get("/v1/models/synthetic").json() == listed["data"][0]
    check_error(client.get("/v1/models/org/other"), 404, "model", "model_not_found")


def test_a_model_tells_what_requests_may_ask_of_speculation(client: TestClient) -> None:
    offered = client.get("/v1/models").json()["data"][0]["racer"]
    assert offered == {
        "drafters": ["racer", "none"],
        "drafter": "racer",
        "verifiers": ["exact"],
        "verifier": "exact",
        "max_nodes": 24,
        "max_context": 4096,
        "draft": None,
        "lambda": None,
        "tau": None,
    }


@pytest.mark.parametrize(
    ("changes", "drafters", "verifiers"),
    [
        ({"draft": "small"}, ["racer", "draft_model", "hybrid", "none"], ["exact"]),
        ({"csd": True}, ["racer", "none"], ["exact", "csd"]),
        ({"csd": True, "draft": "small", "tree_attention": False}, ["none"], ["exact"]),
    ],
)
def test_the_offer_follows_the_engine(changes: dict[str, Any], drafters: list[str], verifiers: list[str]) -> None:
    engine = SyntheticEngine()
    engine.info = replace(engine.info, **changes)
    with client_of(lambda: engine, csd_lambda=3.0) as client:
        offered = client.get("/v1/models").json()["data"][0]["racer"]
    assert (offered["drafters"], offered["verifiers"]) == (drafters, verifiers)
    assert offered["drafter"] in drafters
    assert offered["lambda"] == (3.0 if "csd" in verifiers else None)


def test_a_name_with_a_slash() -> None:
    with client_of(lambda: SyntheticEngine(name="org/model")) as client:
        assert client.get("/v1/models/org/model").json()["id"] == "org/model"


TOOL = {"type": "function", "function": {"name": "f"}}


def test_tokenize(client: TestClient) -> None:
    reply = client.post("/tokenize", json={"prompt": "aé", "model": "synthetic"}).json()
    assert reply == {"tokens": [256, 97, 0xC3, 0xA9], "count": 4, "max_model_len": 4096}
    assert client.post("/tokenize", json={"prompt": "a", "add_special_tokens": False}).json()["tokens"] == [97]
    assert client.post("/tokenize", json={"prompt": "", "add_special_tokens": False}).json()["tokens"] == []
    chat = client.post("/tokenize", json={"messages": HELLO}).json()
    assert chat["count"] == client.post(CHAT, json={"messages": HELLO}).json()["usage"]["prompt_tokens"]


def test_detokenize(client: TestClient) -> None:
    text = "naïve 東京 👩‍👩‍👧\n"
    tokens = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": text}
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    assert client.post("/detokenize", json={"tokens": [256, 97]}).json() == {"prompt": "<|bos|>a"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": [TOOL]}, "tools"),
        ("/tokenize", {"messages": HELLO, "tools": [TOOL, TOOL]}, "tools.1.function.name"),
        ("/tokenize", {"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "foo": 1}, "foo"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": None}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [260]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0"),
        ("/detokenize", {"tokens": [True]}, "tokens.0"),
    ],
)
def test_bad_bodies(client: TestClient, path: str, body: Any, param: str) -> None:
    check_error(client.post(path, json=body), 400, param)


def test_unknown_model(client: TestClient) -> None:
    check_error(client.post("/tokenize", json={"prompt": "a", "model": "x"}), 404, "model", "model_not_found")
    check_error(client.post("/detokenize", json={"tokens": [1], "model": "x"}), 404, "model", "model_not_found")


def test_the_description_names_every_route_and_body(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    for path in ("/v1/completions", CHAT, "/tokenize", "/detokenize"):
        reference = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert reference.rsplit("/", 1)[1] in schema["components"]["schemas"]
    for path in ("/v1/models", "/health", "/ready", "/metrics"):
        assert "get" in schema["paths"][path]
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', client.get("/openapi.json").text))
    assert references <= set(schema["components"]["schemas"])
    assert client.get("/docs").status_code == 200
