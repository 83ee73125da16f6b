"""What each metric says after records whose fields all differ: a field that lands in another's series shows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.api.gate import Gate
from app.api.routes import PATHS
from app.api.service import Service
from app.engine.correction import StoreStatus
from app.engine.events import PHASES, SOURCE_NAMES, SpeculationStats, StepRecord
from app.engine.interface import STEP_ROWS, DraftingStatus, EngineStatus
from app.metrics import FINISHED_REASONS, POSITIONS, Metrics
from csd.stores.base import ERROR_KINDS, ErrorKind
from tests.api.support import BOTH, client_of, new_settings, parse_page, stream
from tests.synthetic import SyntheticEngine

FIRST = StepRecord(
    sessions=3,
    drafts=2,
    nodes=57,
    drafted=54,
    accepted_lengths=(0, 5, 17),
    emitted_by_source={"retrieval": 13, "copy_logit": 8, "draft_model": 4, "target": 3, "grammar": 1},
    phase_seconds={"draft": 0.01, "forward": 0.2, "walk": 0.03, "commit": 0.004, "learn": 0.05},
    rescues=7,
    nominated=29,
    refused_by_gate=11,
    budgets=(1, 24, 32),
    seconds=0.5,
    plain_seconds=1.25,
)
SECOND = StepRecord(
    sessions=1,
    drafts=1,
    nodes=9,
    drafted=8,
    accepted_lengths=(2,),
    emitted_by_source={"retrieval": 2, "target": 1},
    phase_seconds={"forward": 0.125},
    rescues=1,
    nominated=3,
    refused_by_gate=2,
    budgets=(9,),
    seconds=0.25,
    plain_seconds=0.5,
)


def changes(metrics: Metrics, before: dict[str, float]) -> dict[str, Any]:
    """What rose or was set, without buckets and the process's own."""
    page = page_of(metrics)
    return {name: pytest.approx(value - before[name]) for name, value in page.items() if value != before[name]}


def page_of(metrics: Metrics) -> dict[str, float]:
    page = parse_page(metrics.render().decode())
    return {name: value for name, value in page.items() if "_bucket{" not in name and not name.startswith("racer_process_")}


def labelled(name: str, label: str, values: dict[str, float]) -> dict[str, float]:
    return {f'racer_{name}{{{label}="{value}"}}': amount for value, amount in values.items()}


def test_each_field_of_a_step_lands_in_its_own_series() -> None:
    metrics = Metrics()
    before = page_of(metrics)
    metrics.step(FIRST)
    kept = {position: 2.0 if int(position) < 5 else 1.0 for position in POSITIONS[:-1]}
    assert changes(metrics, before) == {
        "racer_verify_steps_total": 3,
        "racer_spec_decode_num_drafts_total": 2,
        "racer_nodes_verified_total": 57,
        "racer_spec_decode_num_draft_tokens_total": 54,
        "racer_spec_decode_num_accepted_tokens_total": 22,
        "racer_accepted_length_count": 3,
        "racer_accepted_length_sum": 22,
        **labelled("spec_decode_num_accepted_tokens_per_pos_total", "position", {**kept, "16+": 1}),
        "racer_generation_tokens_total": 29,
        **labelled("tokens_total", "source", {**FIRST.emitted_by_source}),
        **labelled("phase_seconds_total", "phase", FIRST.phase_seconds),
        "racer_csd_rescues_total": 7,
        "racer_csd_nominated_total": 29,
        "racer_csd_refused_by_gate_total": 11,
        "racer_nodes_per_step_count": 3,
        "racer_nodes_per_step_sum": 57,
        "racer_budget_nodes": 19,
        "racer_decode_seconds_total": 0.5,
        "racer_plain_equivalent_seconds_total": 1.25,
        "racer_speedup_ratio": 2.5,
    }
    assert set(FIRST.emitted_by_source) == set(SOURCE_NAMES)
    assert set(FIRST.phase_seconds) == set(PHASES)


def test_counters_add_and_gauges_follow() -> None:
    metrics = Metrics()
    metrics.step(FIRST)
    before = page_of(metrics)
    metrics.step(SECOND)
    assert changes(metrics, before) == {
        "racer_verify_steps_total": 1,
        "racer_spec_decode_num_drafts_total": 1,
        "racer_nodes_verified_total": 9,
        "racer_spec_decode_num_draft_tokens_total": 8,
        "racer_spec_decode_num_accepted_tokens_total": 2,
        "racer_accepted_length_count": 1,
        "racer_accepted_length_sum": 2,
        **labelled("spec_decode_num_accepted_tokens_per_pos_total", "position", {"0": 1, "1": 1}),
        "racer_generation_tokens_total": 3,
        **labelled("tokens_total", "source", {**SECOND.emitted_by_source}),
        **labelled("phase_seconds_total", "phase", SECOND.phase_seconds),
        "racer_csd_rescues_total": 1,
        "racer_csd_nominated_total": 3,
        "racer_csd_refused_by_gate_total": 2,
        "racer_nodes_per_step_count": 1,
        "racer_nodes_per_step_sum": 9,
        "racer_budget_nodes": 9 - 19,
        "racer_decode_seconds_total": 0.25,
        "racer_plain_equivalent_seconds_total": 0.5,
        "racer_speedup_ratio": pytest.approx(1.75 / 0.75 - 2.5, abs=0.01),  # of late counts a little more
    }


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 40])
def test_places_in_an_accepted_run(length: int) -> None:
    metrics = Metrics()
    metrics.step(StepRecord(1, 1, 64, 63, (length,), {"retrieval": length, "target": 1}, budgets=(64,), seconds=1.0))
    page = page_of(metrics)
    found = [page[f'racer_spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}}'] for position in POSITIONS]
    assert found == [*(float(position < length) for position in range(16)), max(0, length - 16)]


def test_what_a_request_adds() -> None:
    metrics = Metrics()
    before = page_of(metrics)
    metrics.prefilled(100)
    metrics.prefilled(23)
    metrics.first_token(0.75)
    metrics.inter_token(0.6, 3)  # three tokens that came together
    metrics.inter_token(0.5, 1)
    metrics.finished("stop", 2.5, 123, 5)
    assert changes(metrics, before) == {
        "racer_prompt_tokens_total": 123,
        "racer_first_tokens_total": 1,
        "racer_generation_tokens_total": 1,
        'racer_tokens_total{source="target"}': 1,
        "racer_time_to_first_token_seconds_count": 1,
        "racer_time_to_first_token_seconds_sum": 0.75,
        "racer_inter_token_latency_seconds_count": 4,
        "racer_inter_token_latency_seconds_sum": 1.1,
        'racer_request_success_total{finished_reason="stop"}': 1,
        "racer_e2e_request_latency_seconds_count": 1,
        "racer_e2e_request_latency_seconds_sum": 2.5,
        "racer_request_prompt_tokens_count": 1,
        "racer_request_prompt_tokens_sum": 123,
        "racer_request_generation_tokens_count": 1,
        "racer_request_generation_tokens_sum": 5,
    }


def test_what_the_api_adds() -> None:
    metrics = Metrics(("/a",))
    before = page_of(metrics)
    metrics.http_reply("/a", 200)
    metrics.http_reply("/a", 429)
    metrics.http_reply("/b", 503)
    metrics.key_refused()
    metrics.unread_reply("time")
    metrics.request_stats(SpeculationStats("racer", "exact", 4, 20, 6, 11, (1, 1, 1, 1), {}))
    metrics.request_stats(SpeculationStats("racer", "exact", 0, 0, 0, 1, (), {}))  # one token: no step, no mean
    assert changes(metrics, before) == {
        'racer_http_requests_total{route="/a",status="2xx"}': 1,
        'racer_http_requests_total{route="/a",status="4xx"}': 1,
        'racer_http_requests_total{route="other",status="5xx"}': 1,
        "racer_queue_refusals_total": 1,
        "racer_key_refusals_total": 1,
        'racer_unread_replies_total{cause="time"}': 1,
        "racer_request_mean_acceptance_length_count": 1,
        "racer_request_mean_acceptance_length_sum": 2.5,
    }


def test_what_a_scrape_reads_off_the_engine() -> None:
    drafting = DraftingStatus(
        sessions=3,
        automaton_nodes=50,
        automaton_evictions=7,
        session_rows=11,
        warm_rows=12,
        prior_rows=13,
        plain_seconds=0.25,
        step_seconds=tuple(0.01 * rows for rows in STEP_ROWS),
    )
    errors: dict[ErrorKind, int] = {kind: 30 + place for place, kind in enumerate(ERROR_KINDS)}
    store = StoreStatus("degraded", "x", entries=21, recorded=22, acknowledged=23, errors=errors)
    status = EngineStatus(
        running=1,
        waiting=2,
        kv_usage_ratio=0.5,
        heartbeat_age=1.5,
        alive=True,
        ready=True,
        free_places=9,
        retry_after=8,
        conversations=4,
        conversation_rows=5,
        conversation_bytes=6,
        drafting=drafting,
        device_bytes=14,
        store=store,
    )
    given: list[EngineStatus | None] = [None]
    metrics = Metrics()
    metrics.watch(lambda: given[0])
    before = page_of(metrics)
    given[0] = status
    assert changes(metrics, before) == {
        "racer_num_requests_running": 1,
        "racer_num_requests_waiting": 2,
        "racer_kv_cache_usage_ratio": 0.5,
        "racer_conversations": 4,
        "racer_conversation_kv_rows": 5,
        "racer_conversation_bytes": 6,
        "racer_ready": 1,
        "racer_worker_alive": 1,
        "racer_worker_heartbeat_age_seconds": 1.5,
        "racer_device_memory_bytes": 14,
        "racer_sessions": 3,
        "racer_automaton_nodes": 50,
        "racer_automaton_evictions_total": 7,
        **labelled("copy_logit_rows", "layer", {"session": 11, "warm": 12, "prior": 13}),
        "racer_plain_step_seconds": 0.25,
        **labelled("step_cost_seconds", "nodes", {str(rows): 0.01 * rows for rows in STEP_ROWS}),
        "racer_ocm_entries": 21,
        "racer_ocm_recorded_total": 22,
        "racer_store_degraded": 1,
        "racer_store_acknowledged_increments_total": 23,
        **labelled("store_errors_total", "kind", {str(kind): count for kind, count in errors.items()}),
    }


def test_a_client_that_left_before_any_reply_is_counted_with_the_clients_faults() -> None:
    service = Service(new_settings(), SyntheticEngine, Metrics(PATHS), lambda error: None)

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        pass

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    scope = {"type": "http", "method": "GET", "path": "/health", "headers": []}
    before = page_of(service.metrics)
    asyncio.run(Gate(silent, service)(scope, nothing, nothing))
    assert changes(service.metrics, before) == {'racer_http_requests_total{route="/health",status="4xx"}': 1}


@BOTH
def test_a_stream_of_several_choices_counts_each_once(path: str) -> None:
    engine = SyntheticEngine()
    with client_of(lambda: engine) as client:
        prompt = {"prompt": "Hello"} if path.endswith("/v1/completions") else {"messages": [{"role": "user", "content": "Hi"}]}
        body = {**prompt, "n": 3, "max_tokens": 20, "stream_options": {"include_usage": True}, "ignore_eos": True}
        payloads = [payload for payload in stream(client, path, body) if payload != "[DONE]"]
        page = parse_page(client.get("/metrics").text)
        whole = client.post(path, json={key: value for key, value in body.items() if key != "stream_options"}).json()
    told = [payload["metrics"]["speculative_decoding"] for payload in payloads if "metrics" in payload]
    assert len(told) == 1
    assert sum(1 for payload in payloads if payload.get("usage")) == 1
    usage = payloads[-1]["usage"]
    assert usage["completion_tokens"] == page["racer_generation_tokens_total"] == 60
    assert usage["prompt_tokens"] == len(engine.requests[0].prompt_ids) == whole["usage"]["prompt_tokens"]
    assert page["racer_first_tokens_total"] == page["racer_request_mean_acceptance_length_count"] == 3
    assert page['racer_request_success_total{finished_reason="length"}'] == 3
    assert sum(page[f'racer_request_success_total{{finished_reason="{reason}"}}'] for reason in FINISHED_REASONS) == 3
    assert page[f'racer_http_requests_total{{route="{path}",status="2xx"}}'] == 1
    assert told[0]["num_spec_steps"] == page["racer_verify_steps_total"]
    assert told[0]["num_accepted_draft_tokens"] == page["racer_spec_decode_num_accepted_tokens_total"]
    assert told[0]["num_draft_tokens"] == page["racer_spec_decode_num_draft_tokens_total"]
    assert sum(told[0]["tokens_by_source"].values()) == 60
    assert sum(told[0]["acceptance_histogram"]) == told[0]["num_spec_steps"]
