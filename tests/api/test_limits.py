"""How much a request may hold: refused by counting, before each item is looked at."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from app.api.body import parse
from app.api.errors import ApiError
from app.api.limits import Limits, check_items
from app.api.schemas import ChatBody, CompletionBody, DetokenizeBody
from app.engine.errors import ContextLengthExceeded
from tests.api.support import BOTH, CHAT, COMPLETIONS, HELLO, STREAMS, ask, check_alive, check_error, client_of
from tests.synthetic import SyntheticCodec, SyntheticEngine


@BOTH
def test_fields(client: TestClient, path: str) -> None:
    many = {f"f{number}": 1 for number in range(201)}
    error = check_error(ask(client, path, **many), 400)
    assert "at most 200 fields" in error["message"]
    check_error(ask(client, path, speculative=many), 400, "speculative")
    check_error(ask(client, path, stream=True, stream_options=many), 400, "stream_options")
    check_error(client.post(CHAT, json={"messages": [*HELLO, {**HELLO[0], **many}]}), 400, "messages.1")


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_messages(path: str) -> None:
    engine = SyntheticEngine(max_context=100_000)
    with client_of(lambda: engine, max_running=1) as client:
        assert client.post(path, json={"messages": HELLO * 4096}).status_code == 200
        error = check_error(client.post(path, json={"messages": HELLO * 4097}), 400, "messages")
        assert "4096" in error["message"]
        check_error(client.post(path, json={"messages": [5] * 60_000}), 400, "messages")


def test_only_the_first_fault_of_a_list_is_looked_for() -> None:
    for model, body in (
        (ChatBody, {"messages": [{"role": "x"}] * 4096}),
        (ChatBody, {"messages": [{"role": "assistant", "tool_calls": [{}] * 1000}]}),
        (CompletionBody, {"prompt": "a", "stop_token_ids": [-1] * 100_000}),
        (DetokenizeBody, {"tokens": ["a"] * 100_000}),
    ):
        with pytest.raises(ValidationError) as error:
            model.model_validate(body)
        assert error.value.error_count() <= 2


@pytest.mark.parametrize("prompt", [[1] * 900_000, [1, *["x"] * 5000], [[1], [1] * 5000]])
def test_prompt_ids_beyond_the_context(client: TestClient, prompt: Any) -> None:
    error = check_error(client.post(COMPLETIONS, json={"prompt": prompt}), 400, "prompt", "context_length_exceeded")
    assert "4096" in error["message"]
    check_alive(client)


def test_prompt_ids_that_leave_no_room_for_one_token() -> None:
    def ids(count: int) -> bytes:
        return json.dumps({"prompt": [1] * count}).encode()

    limits = Limits(context=10, prompt_tokens=10, prompt_chars=320)
    assert parse(ids(9), CompletionBody, limits).prompt == ((1,) * 9,)
    with pytest.raises(ContextLengthExceeded):
        parse(ids(10), CompletionBody, limits)


@BOTH
def test_stop_strings(client: TestClient, path: str) -> None:
    assert ask(client, path, stop=["a" * 1024] * 16, max_tokens=1).status_code == 200
    error = check_error(ask(client, path, stop="a" * 1025), 400, "stop")
    assert "1024" in error["message"]
    check_error(ask(client, path, stop=["a", "b" * 1025]), 400, "stop.1")


def test_prompts_that_can_never_fit_are_no_matter_of_waiting() -> None:
    engine = SyntheticEngine(max_running=2, max_queued=3)
    with client_of(lambda: engine, max_running=2, max_queued=3) as client:
        error = check_error(client.post(COMPLETIONS, json={"prompt": ["a"] * 6}), 400, "prompt")
        assert "at most 5 prompts" in error["message"]
        assert client.post(COMPLETIONS, json={"prompt": ["a"] * 5, "max_tokens": 1}).status_code == 200


def test_two_threads_at_most_hold_bodies() -> None:
    """Large bodies wait for each other, while the other routes answer."""
    inside, go_on = threading.Semaphore(0), threading.Event()
    running: list[int] = []
    most: list[int] = []

    class Slow(SyntheticCodec):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            running.append(1)
            most.append(len(running))
            inside.release()
            go_on.wait(30.0)
            running.pop()
            return super().encode(text, add_special_tokens)

    engine = SyntheticEngine(codec=Slow())
    statuses: list[int] = []
    with client_of(lambda: engine) as client:

        def ask_once(path: str) -> None:
            statuses.append(client.post(path, json={"prompt": "a"}).status_code)

        threads = [threading.Thread(target=ask_once, args=(path,)) for path in ("/tokenize", COMPLETIONS) * 3]
        for thread in threads:
            thread.start()
        for _ in range(2):
            assert inside.acquire(timeout=30.0)
        assert client.get("/health").status_code == client.get("/metrics").status_code == 200
        assert not inside.acquire(blocking=False)
        go_on.set()
        for _ in range(4):
            assert inside.acquire(timeout=30.0)
        for thread in threads:
            thread.join(30.0)
    assert statuses == [200] * 6
    assert max(most) == 2


# -- text that no tokenizer takes ------------------------------------------------------------------------------------------


class Broken(SyntheticCodec):
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        raise ValueError("not text")

    def read_chat(self, *arguments: Any) -> Any:
        raise ValueError("not text")


@pytest.mark.parametrize(("path", "param"), [(CHAT, "messages"), (COMPLETIONS, "prompt")])
def test_text_that_cannot_be_tokenised(client: TestClient, engine: SyntheticEngine, path: str, param: str) -> None:
    engine.codec = Broken()  # type: ignore[assignment]
    check_error(ask(client, path), 400, param)
    body = {"messages": HELLO} if param == "messages" else {"prompt": "a"}
    check_error(client.post("/tokenize", json=body), 400, param)


@pytest.mark.parametrize(
    "part",
    ['"stop": [' + "[]," * 100_000 + "[]]", '"metadata": {' + "".join(f'"k{n}": 1,' for n in range(100_001)) + '"k": 1}'],
)
def test_json_of_too_many_parts_is_not_read(client: TestClient, part: str) -> None:
    body = ('{"prompt": "a", ' + part + "}").encode()
    with pytest.raises(ApiError, match="at most 100000 strings, lists and objects"):
        check_items(body)
    check_error(client.post(COMPLETIONS, content=body, headers={"Content-Type": "application/json"}), 400, code="invalid_json")


def test_brackets_and_quotes_in_a_text_are_text() -> None:
    check_items(json.dumps({"prompt": '["{' * 200_000}).encode())
    check_items(json.dumps({"prompt": '\\"' * 200_000}).encode())
    check_items(json.dumps({"prompt": [1] * 500_000}).encode())


# -- limits that are settings --------------------------------------------------------------------------------------------


@BOTH
@STREAMS
def test_prompts_beyond_the_server_s_limit(path: str, stream: bool) -> None:
    engine = SyntheticEngine()
    with client_of(lambda: engine, max_prompt_tokens=50) as client:
        assert ask(client, path, stream=stream).status_code == 200
        long: dict[str, Any] = (
            {"prompt": "a" * 60} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "a" * 60}]}
        )
        error = check_error(client.post(path, json={**long, "stream": stream}), 400, code="context_length_exceeded")
        assert "50" in error["message"] and error["param"] == next(iter(long))
        if path == COMPLETIONS:
            check_error(client.post(path, json={"prompt": [1] * 51}), 400, "prompt", "context_length_exceeded")
            assert client.post(path, json={"prompt": [1] * 50}).status_code == 200


class Untouched(SyntheticCodec):
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        raise AssertionError("tokenised")


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a" * 101},
        {"prompt": ["a", "b" * 101]},
        {"messages": [{"role": "user", "content": "a" * 101}]},
        {"messages": [{"role": "user", "content": "a" * 51}] * 2},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 51}] * 2}]},
    ],
)
def test_text_beyond_the_limit_is_refused_before_it_is_tokenised(body: dict[str, Any]) -> None:
    engine = SyntheticEngine(codec=Untouched())
    path = COMPLETIONS if "prompt" in body else CHAT
    with client_of(lambda: engine, max_prompt_chars=100) as client:
        error = check_error(client.post(path, json=body), 400, next(iter(body)), "context_length_exceeded")
        assert "at most 100 characters" in error["message"]


def test_the_limit_of_characters_follows_the_context() -> None:
    engine = SyntheticEngine(codec=Untouched(), max_context=100)
    with client_of(lambda: engine) as client:
        error = check_error(ask(client, COMPLETIONS, prompt="a" * 3201), 400, "prompt", "context_length_exceeded")
        assert "3201" in error["message"] and "100 tokens" in error["message"]


@BOTH
def test_answers_are_bounded_by_the_server(path: str) -> None:
    engine = SyntheticEngine(answer_tokens=500)
    with client_of(lambda: engine, max_output_tokens=10) as client:
        for name in ("max_tokens", "max_completion_tokens"):
            error = check_error(ask(client, path, **{name: 11}), 400, name)
            assert "at most 10" in error["message"]
            assert ask(client, path, **{name: 10}).json()["usage"]["completion_tokens"] == 10
        reply = ask(client, path).json()
        assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (10, "length")


@pytest.mark.parametrize(
    ("path", "fields", "most"),
    [
        (COMPLETIONS, {}, 16),  # by default
        (COMPLETIONS, {"prompt": [1] * 90}, 10),
        (CHAT, {}, None),  # as far as the context reaches
    ],
)
def test_an_answer_cannot_be_longer_than_it_may_be(path: str, fields: dict[str, Any], most: int | None) -> None:
    with client_of(lambda: SyntheticEngine(max_context=100, answer_tokens=500)) as client:
        if most is None:
            most = 100 - ask(client, path, max_tokens=1).json()["usage"]["prompt_tokens"]
        error = check_error(ask(client, path, **fields, min_tokens=most + 1), 400, "min_tokens")
        assert f"at most {most} here" in error["message"]
        assert ask(client, path, **fields, min_tokens=most).json()["usage"]["completion_tokens"] == most


def test_an_answer_must_not_be_longer_than_the_server_gives() -> None:
    with client_of(SyntheticEngine, max_output_tokens=10) as client:
        check_error(ask(client, CHAT, min_tokens=11), 400, "min_tokens")


def test_the_bound_on_answers_takes_no_room_from_the_prompt() -> None:
    engine = SyntheticEngine(max_context=100)
    with client_of(lambda: engine, max_output_tokens=50) as client:
        reply = client.post(COMPLETIONS, json={"prompt": [1] * 98, "ignore_eos": True}).json()
        assert reply["usage"]["completion_tokens"] == 2
        check_error(client.post(COMPLETIONS, json={"prompt": "a" * 120}), 400, "prompt", "context_length_exceeded")
