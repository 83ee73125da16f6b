"""Metrics: there from the start, adding up, and harmless when they fail."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.api.service import Service
from app.engine.events import PHASES, SOURCE_NAMES, StepRecord
from app.engine.interface import STEP_ROWS
from app.engine.request import GenerationRequest
from app.main import create_app
from app.metrics import FINISHED_REASONS, POSITIONS, Metrics
from app.metrics.labels import ROW_LAYERS, UNREAD_CAUSES
from csd.stores.base import ERROR_KINDS
from tests.api.support import CHAT, COMPLETIONS, HELLO, client_of, new_settings, samples, serving, stream
from tests.synthetic import SyntheticEngine
from tests.waiting import wait_until

COUNTERS = (
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "verify_steps_total",
    "nodes_verified_total",
    "first_tokens_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "queue_refusals_total",
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_ratio",
    "csd_rescues_total",
    "csd_nominated_total",
    "csd_refused_by_gate_total",
    "decode_seconds_total",
    "plain_equivalent_seconds_total",
    "speedup_ratio",
    "plain_step_seconds",
    "budget_nodes",
    "sessions",
    "conversations",
    "conversation_kv_rows",
    "conversation_bytes",
    "automaton_nodes",
    "automaton_evictions_total",
    "ocm_entries",
    "store_degraded",
    "store_acknowledged_increments_total",
    "worker_heartbeat_age_seconds",
    "device_memory_bytes",
)
HISTOGRAMS = (
    "accepted_length",
    "request_mean_acceptance_length",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "nodes_per_step",
    "request_prompt_tokens",
    "request_generation_tokens",
)


def test_every_series_is_there_from_the_start() -> None:
    with client_of(SyntheticEngine) as client:
        page = samples(client)
    names = [f"racer_{name}" for name in COUNTERS]
    names += [f"racer_{name}_{part}" for name in HISTOGRAMS for part in ("count", "sum", 'bucket{le="+Inf"}')]
    names += [f'racer_spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}}' for position in POSITIONS]
    names += [f'racer_tokens_total{{source="{source}"}}' for source in SOURCE_NAMES]
    names += [f'racer_phase_seconds_total{{phase="{phase}"}}' for phase in PHASES]
    names += [f'racer_request_success_total{{finished_reason="{reason}"}}' for reason in FINISHED_REASONS]
    names += [f'racer_http_requests_total{{route="{CHAT}",status="{status}"}}' for status in ("2xx", "4xx", "5xx")]
    names += [f'racer_unread_replies_total{{cause="{cause}"}}' for cause in UNREAD_CAUSES]
    names += [f'racer_store_errors_total{{kind="{kind}"}}' for kind in ERROR_KINDS]
    names += [f'racer_step_cost_seconds{{nodes="{nodes}"}}' for nodes in STEP_ROWS]
    names += [f'racer_copy_logit_rows{{layer="{layer}"}}' for layer in ROW_LAYERS]
    for name in names:
        assert page[name] == 0, name
    assert page["racer_ready"] == page["racer_worker_alive"] == 1
    assert page["racer_process_resident_memory_bytes"] > 1e6
    assert page["racer_tree_attention"] == 1
    assert [value for name, value in page.items() if name.startswith("racer_build_info{")] == [1]
    assert not [name for name in page if "_created" in name]
    assert all(name.startswith("racer_") for name in page)


def test_series_are_the_same_before_and_after_loading_and_traffic() -> None:
    release = threading.Event()

    def load() -> SyntheticEngine:
        release.wait(30.0)
        return SyntheticEngine()

    with client_of(load, wait=False) as client:
        before = samples(client)
        release.set()
        wait_until(lambda: client.get("/ready").status_code == 200)
        assert client.post(CHAT, json={"messages": HELLO}).status_code == 200
        client.post(CHAT, json={"messages": "wrong"})
        after = samples(client)
    assert list(after) == list(before)
    assert before["racer_ready"] == 0
    assert after["racer_ready"] == 1
    counters = {name for name in before if "_total" in name or "_bucket" in name}
    assert all(after[name] >= before[name] for name in counters)


def test_counts_add_up(client: TestClient) -> None:
    used = prompts = steps = accepted = 0
    for number in range(20):
        body: dict[str, Any] = {"messages": HELLO, "seed": number, "max_tokens": 1 + 3 * number, "ignore_eos": number % 2 == 0}
        if number % 3 == 0:
            body["speculative"] = {"drafter": "none"}
        if number % 2:
            payload = stream(client, CHAT, {**body, "stream_options": {"include_usage": True}})
            usage, found = payload[-2]["usage"], payload[-3]["metrics"]["speculative_decoding"]
        else:
            reply = client.post(CHAT, json=body).json()
            usage, found = reply["usage"], reply["metrics"]["speculative_decoding"]
        used += usage["completion_tokens"]
        prompts += usage["prompt_tokens"]
        steps += found["num_spec_steps"]
        accepted += found["num_accepted_draft_tokens"]
    page = samples(client)
    assert page["racer_generation_tokens_total"] == used
    assert page["racer_prompt_tokens_total"] == prompts
    assert page["racer_verify_steps_total"] == steps
    assert page["racer_spec_decode_num_accepted_tokens_total"] == accepted
    assert page["racer_first_tokens_total"] == 20
    assert used == accepted + steps + 20
    assert sum(page[f'racer_tokens_total{{source="{source}"}}'] for source in SOURCE_NAMES) == used
    by_position = [page[f'racer_spec_decode_num_accepted_tokens_per_pos_total{{position="{p}"}}'] for p in POSITIONS]
    assert sum(by_position) == accepted
    assert by_position[:-1] == sorted(by_position[:-1], reverse=True)
    assert accepted <= page["racer_spec_decode_num_draft_tokens_total"]
    assert page["racer_nodes_verified_total"] == page["racer_spec_decode_num_draft_tokens_total"] + steps
    assert page["racer_accepted_length_count"] == steps
    assert page["racer_accepted_length_sum"] == accepted
    assert page["racer_time_to_first_token_seconds_count"] == page["racer_e2e_request_latency_seconds_count"] == 20
    assert sum(page[f'racer_request_success_total{{finished_reason="{reason}"}}'] for reason in FINISHED_REASONS) == 20
    assert page[f'racer_http_requests_total{{route="{CHAT}",status="2xx"}}'] == 20
    assert page["racer_nodes_per_step_count"] == steps
    assert page["racer_nodes_per_step_sum"] == page["racer_nodes_verified_total"]
    assert page["racer_request_generation_tokens_sum"] == used
    assert page["racer_request_prompt_tokens_sum"] == prompts
    assert page["racer_request_mean_acceptance_length_count"] == 19  # one had a single token, so no verify step


def test_gauges_follow_the_engine() -> None:
    engine = SyntheticEngine(manual=True, max_running=2)
    with client_of(lambda: engine) as client:
        handles = [engine.submit(GenerationRequest((1,)), lambda event: None) for _ in range(5)]
        wait_until(lambda: engine.status().running == 2)
        page = samples(client)
        assert (page["racer_num_requests_running"], page["racer_num_requests_waiting"]) == (2, 3)
        assert page["racer_kv_cache_usage_ratio"] == 1.0
        for handle in handles:
            handle.cancel()
        wait_until(lambda: samples(client)["racer_num_requests_running"] == 0)
        assert samples(client)['racer_request_success_total{finished_reason="cancelled"}'] == 5


@pytest.mark.parametrize("streamed", [False, True])
def test_seconds_count_from_before_the_body_is_there(engine: SyntheticEngine, streamed: bool) -> None:
    content = json.dumps({"messages": HELLO, "n": 2, "max_tokens": 3, "stream": streamed}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    app = create_app(new_settings(), lambda: engine)
    service: Service = app.state.service
    with serving(app) as url, socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 30.0) as raw:
        wait_until(lambda: service.status() is not None)
        before = time.monotonic()
        raw.sendall(head.encode())
        wait_until(lambda: service.admission.held("") == 1)  # it has come in, and waits for the body
        between = time.monotonic()
        raw.sendall(content)
        wait_until(lambda: len(engine.requests) == 2)
    for request in engine.requests:
        assert request.arrived_at is not None
        assert before <= request.arrived_at <= between


def test_labels_are_closed_sets(client: TestClient) -> None:
    before = set(samples(client))
    for path in ("/secret", "/v1/models/secret", "/v1/x?secret=1", "/%00"):
        client.get(path)
    client.post(COMPLETIONS, json={"prompt": "a", "model": "secret", "user": "secret"})
    page = samples(client)
    assert set(page) == before
    assert page['racer_http_requests_total{route="other",status="4xx"}'] == 3
    assert page['racer_http_requests_total{route="/v1/models/{model}",status="4xx"}'] == 1
    assert not [name for name in page if "secret" in name]


def test_each_app_counts_for_itself() -> None:
    with client_of(SyntheticEngine) as one, client_of(SyntheticEngine) as other:
        one.post(CHAT, json={"messages": HELLO})
        assert samples(one)["racer_generation_tokens_total"] > 0
        assert samples(other)["racer_generation_tokens_total"] == 0


def counts(metrics: Metrics) -> list[str]:
    """The page without the figures of the process, which change by themselves."""
    return [line for line in metrics.render().decode().splitlines() if not line.startswith("racer_process_")]


# -- failures of metrics -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        StepRecord(1, 1, 3, 2, (-1,), {"target": 1}),
        StepRecord(0, 1, 3, 2, (1,), {"target": 1}),
        StepRecord(-1, 1, 3, 2, (1,), {"target": 1}),
        StepRecord(1, 1, 3, 2, (1,), {"target": -1}),
        StepRecord(1, 1, 3, 2, (1,), {"unknown": 1}),
        StepRecord(1, 1, 3, 2, (1,), {"target": 1}, {"forward": -1.0}),
        StepRecord(1, 1, 3, 2, (1,), {"target": 1}, {"unknown": 1.0}),
        StepRecord(1, 1, 3, 2, (1,), {"target": 1}, seconds=-1.0),
        StepRecord(1, 1, 3, 2, (1,), {"target": 1}, plain_seconds=-1.0),
        StepRecord(1, 1, 3, 2, (1,), {"target": 1}, budgets=(-3,)),
        StepRecord(1, 1, 3, 2, None, {"target": 1}),  # type: ignore[arg-type]
    ],
)
def test_a_bad_record_is_dropped_whole_and_logged_once(record: StepRecord, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    before = counts(metrics)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            metrics.step(record)
    assert counts(metrics) == before
    assert len(caplog.records) == 1
    metrics.step(StepRecord(1, 1, 3, 2, (1,), {"target": 1, "retrieval": 1}))
    assert counts(metrics) != before


def test_no_metric_call_raises() -> None:
    metrics = Metrics()
    metrics.prefilled(-5)
    metrics.prefilled("x")  # type: ignore[arg-type]
    metrics.first_token(None)  # type: ignore[arg-type]
    metrics.inter_token(1.0, -3)
    metrics.inter_token(1.0, 0)
    metrics.finished("unknown", 1.0, 1, 1)  # type: ignore[arg-type]
    metrics.http_reply("/", 99)
    metrics.request_stats(None)  # type: ignore[arg-type]
    metrics.model_loaded(None)  # type: ignore[arg-type]


def test_requests_outlive_broken_metrics(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    service = client.app.state.service  # type: ignore[attr-defined]

    def broken(*args: object) -> None:
        raise RuntimeError("broken")

    for name in ("_steps", "_first_tokens", "_finished", "_http", "_request_mean", "_prompt_tokens"):
        monkeypatch.setattr(service.metrics, name, broken)
    for _ in range(3):
        assert client.post(CHAT, json={"messages": HELLO}).status_code == 200
        assert stream(client, CHAT, {"messages": HELLO})[-1] == "[DONE]"


def test_a_status_that_cannot_be_read_leaves_the_page_whole() -> None:
    metrics = Metrics()

    def broken() -> None:
        raise RuntimeError("broken")

    metrics.watch(broken)
    page = metrics.render().decode()
    assert re.search(r"^racer_num_requests_running 0\.0$", page, re.MULTILINE)
