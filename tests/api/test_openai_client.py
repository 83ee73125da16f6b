"""openai-python, unmodified, against a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from app.api.service import Service
from app.engine.errors import EngineClosed, QueueFull
from tests.api.support import served
from tests.synthetic import SyntheticEngine

MESSAGES: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def engine() -> SyntheticEngine:
    return SyntheticEngine(max_running=2, max_queued=2)


@pytest.fixture
def api(engine: SyntheticEngine) -> Iterator[openai.OpenAI]:
    with served(engine, api_keys="key") as url, openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as client:
        yield client


def test_chat(api: openai.OpenAI) -> None:
    whole = api.chat.completions.create(model="synthetic", messages=MESSAGES, temperature=0)
    assert whole.choices[0].finish_reason == "stop"
    assert _extra(whole)["metrics"]["speculative_decoding"]["num_spec_steps"] > 0
    chunks = list(
        api.chat.completions.create(
            model="synthetic", messages=MESSAGES, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].usage == whole.usage
    joined = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert joined == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]


@pytest.mark.parametrize(
    ("engine_options", "settings", "error"),
    [
        ({"fail_at_step": 2}, {}, openai.InternalServerError),
        ({"manual": True}, {"request_timeout": 0.1}, openai.InternalServerError),
    ],
    ids=["500", "504"],
)
def test_what_would_run_again_to_the_same_end_is_not_retried(
    engine_options: dict[str, Any], settings: dict[str, Any], error: type[Exception]
) -> None:
    engine = SyntheticEngine(**engine_options)
    with served(engine, **settings) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=2) as api:
        with pytest.raises(error):
            api.chat.completions.create(model="synthetic", messages=MESSAGES)
        assert len(engine.requests) == 1


def test_what_may_go_better_is_retried(engine: SyntheticEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue, and a server that stops: another one may answer."""
    submit, refusals = engine.submit, [QueueFull(0), EngineClosed()]

    def refuse_first(*arguments: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return submit(*arguments)

    monkeypatch.setattr(engine, "submit", refuse_first)
    monkeypatch.setattr("app.api.errors.RETRY_AFTER", 0)
    with served(engine) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=2) as api:
        assert api.chat.completions.create(model="synthetic", messages=MESSAGES).choices
        assert not refusals


def test_the_answer_can_be_sent_back(api: openai.OpenAI) -> None:
    whole = api.chat.completions.create(model="synthetic", messages=MESSAGES)
    again = [*MESSAGES, whole.choices[0].message.model_dump(), {"role": "user", "content": "And?"}]
    assert api.chat.completions.create(model="synthetic", messages=again).choices[0].message.content


def test_the_stream_helper(api: openai.OpenAI) -> None:
    with api.chat.completions.stream(model="synthetic", messages=MESSAGES, seed=1) as stream:
        final = stream.get_final_completion()
    whole = api.chat.completions.create(model="synthetic", messages=MESSAGES, seed=1)
    assert final.choices[0].message.content == whole.choices[0].message.content


def test_completions(api: openai.OpenAI) -> None:
    whole = api.completions.create(model="synthetic", prompt=["a", "b"], temperature=0, max_tokens=20)
    texts = ["", ""]
    for chunk in api.completions.create(model="synthetic", prompt=["a", "b"], temperature=0, max_tokens=20, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    body = {"speculative": {"drafter": "none"}}
    plain = api.completions.create(model="synthetic", prompt=["a", "b"], temperature=0, max_tokens=20, extra_body=body)
    assert [choice.text for choice in plain.choices] == texts


def test_models(api: openai.OpenAI) -> None:
    assert [model.id for model in api.models.list()] == ["synthetic"]
    assert api.models.retrieve("synthetic").id == "synthetic"
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("other")


def test_errors(api: openai.OpenAI, engine: SyntheticEngine) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        api.completions.create(model="synthetic", prompt="a", n=0)
    assert bad.value.param == "n"
    with pytest.raises(openai.NotFoundError) as missing:
        api.completions.create(model="other", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        api.with_options(api_key="wrong").completions.create(model="synthetic", prompt="a")
    engine.manual = True
    with pytest.raises(openai.RateLimitError):
        api.completions.create(model="synthetic", prompt=["a"] * 9)


def test_an_error_inside_a_stream(api: openai.OpenAI, engine: SyntheticEngine) -> None:
    engine.fail_at_step = 5
    stream = api.chat.completions.create(model="synthetic", messages=MESSAGES, stream=True, extra_body={"ignore_eos": True})
    with pytest.raises(openai.APIError):
        list(stream)


def test_keep_alives(engine: SyntheticEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.manual = True
    monkeypatch.setattr(Service, "keep_alive_after", 0.02)
    with served(engine) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as api:
        raw = httpx.Client(base_url=url)
        body = {"messages": MESSAGES, "stream": True}
        with raw.stream("POST", "/v1/chat/completions", json=body) as reply:
            assert next(reply.iter_lines()).startswith(":")
        stream = api.chat.completions.create(model="synthetic", messages=MESSAGES, stream=True)
        timer = threading.Timer(0.1, engine.allow)
        timer.start()
        assert list(stream)[-1].choices[0].finish_reason == "stop"


def _extra(reply: Any) -> dict[str, Any]:
    """What the client kept of members it does not know."""
    return dict(reply.model_extra)
