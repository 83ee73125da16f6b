"""Parameters that reach into the engine, through HTTP on a tiny model: what openai-python sends and reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from app.main import create_app
from tests.api.support import COMPLETIONS, check_error, events, new_settings, serving
from tests.engine.drafting import FLAT
from tests.tiny import tiny_engine
from tests.waiting import wait_until

TEXT = "thecatsatonthemat,thecatsaton"
PLAIN = {"drafter": "none"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with tiny_engine(eos=frozenset(), cost_curve=FLAT) as engine:
        app = create_app(new_settings(target="tiny"), lambda: engine)
        with serving(app) as url:
            wait_until(lambda: app.state.service.status() is not None)
            yield url


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60.0) as client:
        yield client


def complete(client: httpx.Client, **fields: Any) -> Any:
    reply = client.post(COMPLETIONS, json={"prompt": TEXT, "temperature": 0, "max_tokens": 40, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.5, "repetition_penalty": 1.2},
        {"logit_bias": {"40": -100, "41": 2.5}},
        {"temperature": 0.9, "seed": 3, "min_p": 0.02, "top_k": 40, "top_p": 0.9},
        {"min_tokens": 10, "stop": ["?"]},
    ],
)
def test_the_answer_is_plains(client: httpx.Client, fields: dict[str, Any]) -> None:
    ours, plain = complete(client, **fields), complete(client, **fields, speculative=PLAIN)
    assert ours["choices"][0]["text"] == plain["choices"][0]["text"]
    assert ours["usage"] == plain["usage"]
    assert complete(client)["choices"][0]["text"] != ours["choices"][0]["text"]


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_completion_logprobs_have_one_entry_for_each_token(client: httpx.Client, echo: bool, stream: bool) -> None:
    body = {"prompt": TEXT, "temperature": 0, "max_tokens": 30, "logprobs": 2, "echo": echo}
    if stream:
        reply = client.post(COMPLETIONS, json={**body, "stream": True})
        choices = [chunk["choices"][0] for chunk in events(reply.text)[:-1]]
    else:
        choices = [complete(client, **body)["choices"][0]]
    text = "".join(choice["text"] for choice in choices)
    merged: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for choice in choices:
        for name, values in merged.items():
            values.extend(choice["logprobs"][name])
    assert text.startswith(TEXT) == echo
    assert len(merged["tokens"]) == 30 + (len(TEXT) if echo else 0)
    assert "".join(merged["tokens"]) == text
    assert merged["text_offset"] == [len("".join(merged["tokens"][:place])) for place in range(len(merged["tokens"]))]
    first = 1 if echo else 0
    assert (merged["token_logprobs"][0] is None) == echo
    for token, value, top in list(zip(merged["tokens"], merged["token_logprobs"], merged["top_logprobs"], strict=True))[first:]:
        assert value <= 0.0
        assert 2 <= len(top) <= 3
        assert top[token] == value <= max(top.values())


def test_no_likeliest_tokens_but_the_sampled_one(client: httpx.Client) -> None:
    found = complete(client, temperature=1.0, seed=3, max_tokens=20, logprobs=0)["choices"][0]["logprobs"]
    pairs = zip(found["tokens"], found["token_logprobs"], strict=True)
    assert found["top_logprobs"] == [{token: value} for token, value in pairs]


def test_echo_gives_back_token_prompts_too(client: httpx.Client) -> None:
    choices = complete(client, prompt=[[20, 21], [22]], echo=True, n=2, max_tokens=3)["choices"]
    plain = complete(client, prompt=[[20, 21], [22]], n=2, max_tokens=3)["choices"]
    starts = [client.post("/detokenize", json={"tokens": tokens}).json()["prompt"] for tokens in ([20, 21], [22])]
    assert [choice["text"] for choice in choices] == [starts[place // 2] + choice["text"] for place, choice in enumerate(plain)]


def test_choices_differ_and_the_prompt_counts_once(client: httpx.Client) -> None:
    body = complete(client, n=4, temperature=1, seed=7)
    texts = [choice["text"] for choice in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    assert texts[0] == complete(client, temperature=1, seed=7)["choices"][0]["text"]
    assert texts == [choice["text"] for choice in complete(client, n=4, temperature=1, seed=7)["choices"]]
    assert body["usage"]["prompt_tokens"] == len(TEXT)
    assert body["usage"]["completion_tokens"] == 160
    greedy = complete(client, n=2)["choices"]
    assert greedy[0]["text"] == greedy[1]["text"]


def test_streamed_choices_have_their_own_ends(client: httpx.Client) -> None:
    fields = {"n": 3, "temperature": 1, "seed": 7, "max_tokens": 12}
    whole = [choice["text"] for choice in complete(client, **fields)["choices"]]
    body = {"prompt": TEXT, **fields, "stream": True, "stream_options": {"include_usage": True}}
    chunks = events(client.post(COMPLETIONS, json=body).text)
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["usage"]["prompt_tokens"] == len(TEXT)
    assert chunks[-2]["usage"]["completion_tokens"] == 36
    texts = ["", "", ""]
    ends = []
    for chunk in chunks[:-2]:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
            ends += [choice["index"]] * (choice["finish_reason"] is not None)
    assert texts == whole
    assert sorted(ends) == [0, 1, 2]


def test_a_conversation_reads_only_what_is_new(client: httpx.Client) -> None:
    one = complete(client, session_id="talk")
    assert one["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    longer = TEXT + one["choices"][0]["text"] + "andthen"
    two = complete(client, prompt=longer, session_id="talk")
    assert two["usage"]["prompt_tokens_details"]["cached_tokens"] == len(TEXT) + 40 - 1
    assert two["choices"][0]["text"] == complete(client, prompt=longer)["choices"][0]["text"]
    by_header = client.post(
        COMPLETIONS, json={"prompt": longer, "temperature": 0, "max_tokens": 40}, headers={"X-Session-Id": "talk"}
    ).json()
    assert by_header["usage"]["prompt_tokens_details"]["cached_tokens"] > len(TEXT)


def test_session_names_that_cannot_be(client: httpx.Client) -> None:
    def ask(headers: dict[str, str], **fields: Any) -> Any:
        return client.post(COMPLETIONS, json={"prompt": TEXT, "max_tokens": 1, **fields}, headers=headers)

    check_error(ask({"X-Session-Id": "two words"}), 400, "session_id")
    check_error(ask({"X-Session-Id": "a"}, session_id="b"), 400, "session_id")
    check_error(ask({"X-Session-Id": "a"}, n=2), 400, "session_id")
    check_error(ask({"X-Session-Id": "a"}, prompt=["x", "y"]), 400, "session_id")
    assert ask({"X-Session-Id": "a"}, session_id="a").status_code == 200


def test_what_contradicts_itself(client: httpx.Client) -> None:
    check_error(client.post(COMPLETIONS, json={"prompt": TEXT, "max_tokens": 5, "min_tokens": 6}), 400, "min_tokens")
    many = client.post(COMPLETIONS, json={"prompt": ["a"] * 64, "n": 16})
    check_error(many, 400, "n")


def test_openai_python_reads_logprobs_and_choices(url: str) -> None:
    with OpenAI(base_url=f"{url}/v1", api_key="none") as openai:
        done = openai.completions.create(model="tiny", prompt=TEXT, max_tokens=8, n=2, logprobs=3, temperature=0, echo=True)
        assert len(done.choices) == 2
        scores = done.choices[1].logprobs
        assert scores is not None and scores.tokens is not None
        assert "".join(scores.tokens) == done.choices[1].text
