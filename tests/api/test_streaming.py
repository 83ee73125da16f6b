"""Event streams: frames to the letter, and the same text as without streaming."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from app.api.generations import Generations
from app.api.json_text import dump
from app.api.replies import CHAT as CHAT_KIND
from app.api.replies import Reply
from app.api.streaming import frames
from app.api.token_details import DetailOptions
from app.engine.events import Delta, EventSink, Finished, SpeculationStats
from app.engine.request import GenerationRequest
from app.metrics import Metrics
from tests.api.support import BASE, BOTH, CHAT, COMPLETIONS, HELLO, check_error, client_of, events, stream, text_of
from tests.synthetic import SyntheticEngine
from tests.synthetic_session import SyntheticCodec
from tests.waiting import wait_until

FIXED = ("id", "created", "model", "object", "system_fingerprint")


@BOTH
@pytest.mark.parametrize("usage", [None, False, True])
def test_frames(client: TestClient, path: str, usage: bool | None) -> None:
    body = {**BASE[path], "temperature": 0, "max_tokens": 100}
    whole = client.post(path, json=body).json()
    options = {} if usage is None else {"stream_options": {"include_usage": usage}}
    payloads = stream(client, path, {**body, **options})
    assert payloads.pop() == "[DONE]"
    if usage:
        last = payloads.pop()
        assert last["choices"] == []
        assert last["usage"] == whole["usage"]
        assert all(payload["usage"] is None for payload in payloads)
    else:
        assert all("usage" not in payload for payload in payloads)
    assert len({tuple(payload[name] for name in FIXED) for payload in payloads}) == 1
    assert payloads[0]["object"] == ("chat.completion.chunk" if path == CHAT else "text_completion")
    choices = [choice for payload in payloads for choice in payload["choices"]]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    if path == CHAT:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in choices[1:])
        assert all(choice["delta"].get("content") != "" for choice in choices[1:])
    else:
        assert all(choice["text"] for choice in choices[:-1])
    assert text_of(payloads) == _text(whole)
    assert set(payloads[-1]["metrics"]["speculative_decoding"]) == set(whole["metrics"]["speculative_decoding"])
    assert all("metrics" not in payload for payload in payloads[:-1])


def test_headers(client: TestClient) -> None:
    reply = client.post(CHAT, json={"messages": HELLO, "stream": True}, headers={"Accept-Encoding": "gzip"})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in reply.headers
    assert "content-length" not in reply.headers
    assert reply.headers["x-request-id"] == events(reply.text)[0]["id"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from([CHAT, COMPLETIONS]),
    max_tokens=st.integers(1, 60),
    stops=st.lists(st.sampled_from(["e", " t", "東", "京 東", "token", "\n", "it's a", "👩‍👩", "zz"]), max_size=3),
    seed=st.integers(0, 5),
    drafter=st.sampled_from(["racer", "none"]),
    ignore_eos=st.booleans(),
)
def test_joined_deltas_equal_the_whole_text(
    client: TestClient, path: str, max_tokens: int, stops: list[str], seed: int, drafter: str, ignore_eos: bool
) -> None:
    body = {
        **BASE[path],
        "max_tokens": max_tokens,
        "stop": stops,
        "seed": seed,
        "ignore_eos": ignore_eos,
        "speculative": {"drafter": drafter, "trace": True},
    }
    whole = client.post(path, json=body).json()
    payloads = stream(client, path, {**body, "stream_options": {"include_usage": True}})
    choice = whole["choices"][0]
    assert text_of(payloads) == _text(whole)
    assert not any(stop in _text(whole) for stop in stops)
    end = payloads[-3]["choices"][0]
    assert (end["finish_reason"], end["stop_reason"]) == (choice["finish_reason"], choice["stop_reason"])
    assert payloads[-2]["usage"] == whole["usage"]
    traced = [token for payload in payloads[:-2] for one in payload["choices"] for token in one.get("trace", ())]
    assert [token["token"] for token in traced] == [token["token"] for token in choice["trace"]]
    assert len(traced) == whole["usage"]["completion_tokens"] <= max_tokens


def test_trace_names_the_source_of_every_token(client: TestClient) -> None:
    body = {**BASE[CHAT], "temperature": 0}
    plain = client.post(CHAT, json=body).json()
    assert "trace" not in plain["choices"][0]
    traced = client.post(CHAT, json={**body, "speculative": {"trace": True}}).json()
    trace = traced["choices"][0]["trace"]
    counted = traced["metrics"]["speculative_decoding"]["tokens_by_source"]
    assert sum(counted.values()) == len(trace) == traced["usage"]["completion_tokens"]
    for source, count in counted.items():
        assert sum(token["source"] == source for token in trace) == count


def test_speculation_metrics(client: TestClient) -> None:
    whole = client.post(COMPLETIONS, json={"prompt": ["a", "b"], "max_tokens": 30}).json()
    found = whole["metrics"]["speculative_decoding"]
    accepted, steps = found["num_accepted_draft_tokens"], found["num_spec_steps"]
    assert whole["usage"]["completion_tokens"] == accepted + steps + 2  # two first tokens
    assert found["mean_acceptance_length"] == pytest.approx((accepted + steps) / steps, abs=1e-3)
    assert found["draft_acceptance_rate"] == pytest.approx(accepted / found["num_draft_tokens"], abs=1e-3)
    assert sum(found["acceptance_histogram"]) == steps
    assert sum(length * count for length, count in enumerate(found["acceptance_histogram"])) == accepted
    assert (found["drafter"], found["verifier"], found["rescues"]) == ("racer", "exact", 0)
    plain = client.post(COMPLETIONS, json={"prompt": "a", "speculative": {"drafter": "none"}}).json()
    found = plain["metrics"]["speculative_decoding"]
    assert (found["drafter"], found["mean_acceptance_length"], found["draft_acceptance_rate"]) == ("none", 1.0, 0.0)


# -- failures ------------------------------------------------------------------------------------------------------------


@BOTH
def test_what_can_be_refused_is_refused_before_the_first_byte(client: TestClient, path: str) -> None:
    for fields in ({"n": 0}, {"max_tokens": 10**9}, {"speculative": {"max_nodes": 99}}, {"stop": [None]}):
        reply = client.post(path, json={**BASE[path], "stream": True, **fields})
        check_error(reply, 400)
        assert reply.headers["content-type"] == "application/json"


@BOTH
def test_a_failure_inside_a_stream(path: str) -> None:
    engine = SyntheticEngine(fail_at_step=10)
    with client_of(lambda: engine) as client:
        payloads = stream(client, path, {**BASE[path], "ignore_eos": True, "max_tokens": 2000})
        assert len(payloads) > 3
        assert set(payloads[-1]) == {"error"}
        assert set(payloads[-1]["error"]) == {"message", "type", "param", "code"}
        assert all(choice["finish_reason"] is None for payload in payloads[:-1] for choice in payload["choices"])
        assert engine.status().running == 0
        assert client.post(path, json=BASE[path]).status_code == 200


def test_one_failure_ends_all_choices() -> None:
    engine = SyntheticEngine(fail_at_step=5, max_running=1)
    with client_of(lambda: engine) as client:
        payloads = stream(client, COMPLETIONS, {"prompt": ["a", "b", "c"], "ignore_eos": True, "max_tokens": 1000})
        assert "error" in payloads[-1]
        wait_until(lambda: engine.status().running + engine.status().waiting == 0)


# -- silence, and odd characters -----------------------------------------------------------------------------------------


class _Handle:
    def cancel(self) -> None:
        pass


class _Silent:
    """An engine of which a stream needs submit() alone: the test sends the events."""

    sink: EventSink

    def submit(self, request: GenerationRequest, sink: EventSink) -> _Handle:
        self.sink = sink
        return _Handle()


async def at_once(write: Callable[[], Any], entries: int) -> Any:
    return write()


def test_keep_alives_are_comments() -> None:
    async def run() -> list[bytes]:
        engine = _Silent()
        generations = Generations(Metrics())
        generations.submit(engine, [GenerationRequest((1,))])  # type: ignore[arg-type]
        reply = Reply(CHAT_KIND, "chatcmpl-1", "m", "fp", DetailOptions(SyntheticCodec()), [None], 1)  # type: ignore[arg-type]
        sent: list[bytes] = []
        async for frame in frames(reply, generations, at_once, keep_alive_after=0.01, usage="none"):
            sent.append(frame)
            if len(sent) == 2:
                engine.sink(Delta((1,), "a", ("target",)))
                stats = SpeculationStats("racer", "exact", 0, 0, 0, 1, (0,), {"target": 1})
                engine.sink(Finished("stop", None, "", 1, 1, stats))
        return sent

    sent = asyncio.run(run())
    assert sent[:2] == [b": keep-alive\n"] * 2
    assert len(events(b"".join(sent).decode())) == 4


def test_every_payload_is_one_line_to_any_reader() -> None:
    text = "".join(map(chr, [*range(0x20), 0x7F, 0x85, 0xA0, 0x2028, 0x2029, 0x1F600])) + "東京"
    line = dump({"text": text}).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["text"] == text
    assert "東京" in line


def _text(whole: dict[str, Any]) -> str:
    choice = whole["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


@BOTH
def test_usage_in_every_chunk(client: TestClient, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**BASE[path], "max_tokens": 30, "n": 2}
    payloads = stream(client, path, {**body, "stream_options": options})[:-1]
    whole = client.post(path, json=body).json()["usage"]
    shared = {name: whole[name] for name in ("prompt_tokens",)}
    counts = [payload["usage"]["completion_tokens"] for payload in payloads]
    assert all(payload["usage"] | shared == payload["usage"] for payload in payloads)
    assert all(
        usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in (p["usage"] for p in payloads)
    )
    assert counts == sorted(counts)
    assert 0 <= counts[0] < counts[-2] == counts[-1] == 60
    assert payloads[-1]["choices"] == []


@BOTH
def test_usage_in_every_chunk_needs_usage(client: TestClient, path: str) -> None:
    body = {**BASE[path], "max_tokens": 3}
    for options in ({"continuous_usage_stats": True}, {"continuous_usage_stats": True, "include_usage": False}):
        assert not any("usage" in payload for payload in stream(client, path, {**body, "stream_options": options})[:-1])
    payloads = stream(client, path, {**body, "stream_options": {"include_usage": True, "continuous_usage_stats": False}})[:-1]
    assert [payload["usage"] for payload in payloads[:-1]] == [None] * (len(payloads) - 1)
