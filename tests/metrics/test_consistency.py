"""200 mixed requests on a real tiny engine: what the metrics say adds up, and agrees with what the clients were told."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.engine.correction import CsdConfig
from app.engine.engine import Engine, EngineConfig
from app.engine.events import PHASES, SOURCE_NAMES
from app.metrics import FINISHED_REASONS, POSITIONS
from tests.api.support import COMPLETIONS, client_of, samples, stream
from tests.engine.drafting import CHEAP, FLAT
from tests.tiny import loaded

REQUESTS = 200
SPECULATIVE: tuple[dict[str, Any], ...] = (
    {},
    {"drafter": "none"},
    {"drafter": "racer", "max_nodes": 8},
    {"drafter": "draft_model"},
    {"drafter": "hybrid", "max_nodes": 16},
    {"drafter": "draft_model", "verifier": "csd", "lambda": 0, "tau": 0.0001},
    {"drafter": "racer", "verifier": "csd", "lambda": 0, "tau": 0.0001},
)


def ask(client: TestClient, number: int) -> dict[str, Any]:
    """One request of the mix; its usage and speculation figures."""
    drawn = random.Random(number)
    body = {
        "prompt": "abcab" * drawn.randint(1, 12) + str(number),
        "max_tokens": drawn.choice((1, 2, 5, 17, 40)),
        "temperature": drawn.choice((0, 0, 0.7)),
        "seed": number,
        "stop": drawn.choice(([], ["q"])),
        "ignore_eos": drawn.random() < 0.5,
        "speculative": SPECULATIVE[number % len(SPECULATIVE)],
    }
    if number % 2:
        frames = stream(client, COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
        figures = next(frame["metrics"] for frame in frames if isinstance(frame, dict) and frame.get("metrics"))
        return {"usage": frames[-2]["usage"], **figures["speculative_decoding"]}
    reply = client.post(COMPLETIONS, json=body)
    assert reply.status_code == 200, reply.text
    return {"usage": reply.json()["usage"], **reply.json()["metrics"]["speculative_decoding"]}


@pytest.fixture(scope="module")
def told_and_counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], dict[str, float], float]:
    """What the clients were told, the page afterwards, and the seconds that all of it took."""
    store = tmp_path_factory.mktemp("store") / "ocm.sqlite3"

    csd = CsdConfig(allowed=True, store=f"sqlite:{store}")
    config = EngineConfig(max_nodes=24, prior_rows=0, cost_curve=FLAT, draft_curve=CHEAP, csd=csd, max_running=4)
    engine = Engine(loaded(), config, draft=loaded(seed=1))
    with client_of(lambda: engine, allow_csd=True, max_queued=REQUESTS) as client, ThreadPoolExecutor(8) as threads:
        started = time.perf_counter()
        told = list(threads.map(lambda number: ask(client, number), range(REQUESTS)))
        seconds = time.perf_counter() - started
        return told, samples(client), seconds


def labelled(page: dict[str, float], name: str, label: str, values: tuple[str, ...]) -> list[float]:
    return [page[f'racer_{name}{{{label}="{value}"}}'] for value in values]


Run = tuple[list[dict[str, Any]], dict[str, float], float]


def test_tokens_add_up(told_and_counted: Run) -> None:
    told, page, _ = told_and_counted
    emitted = page["racer_generation_tokens_total"]
    accepted = page["racer_spec_decode_num_accepted_tokens_total"]
    steps = page["racer_verify_steps_total"]
    assert emitted == accepted + steps + page["racer_first_tokens_total"]
    assert emitted == sum(one["usage"]["completion_tokens"] for one in told)
    assert emitted == sum(labelled(page, "tokens_total", "source", SOURCE_NAMES))
    assert emitted == page["racer_request_generation_tokens_sum"]
    assert page["racer_prompt_tokens_total"] == sum(one["usage"]["prompt_tokens"] for one in told)
    assert page["racer_first_tokens_total"] == page["racer_time_to_first_token_seconds_count"] == REQUESTS
    assert page["racer_inter_token_latency_seconds_count"] == emitted - REQUESTS
    assert sum(labelled(page, "request_success_total", "finished_reason", FINISHED_REASONS)) == REQUESTS


def test_speculation_adds_up(told_and_counted: Run) -> None:
    told, page, _ = told_and_counted
    accepted, drafted = page["racer_spec_decode_num_accepted_tokens_total"], page["racer_spec_decode_num_draft_tokens_total"]
    steps = page["racer_verify_steps_total"]
    assert 0 < accepted <= drafted
    assert accepted == sum(one["num_accepted_draft_tokens"] for one in told)
    assert drafted == sum(one["num_draft_tokens"] for one in told)
    assert steps == sum(one["num_spec_steps"] for one in told)
    assert page["racer_spec_decode_num_drafts_total"] <= steps
    assert page["racer_nodes_verified_total"] == drafted + steps == page["racer_nodes_per_step_sum"]
    assert steps == page["racer_accepted_length_count"] == page["racer_nodes_per_step_count"]
    assert accepted == page["racer_accepted_length_sum"]
    by_position = labelled(page, "spec_decode_num_accepted_tokens_per_pos_total", "position", POSITIONS)
    assert sum(by_position) == accepted
    assert by_position[:-1] == sorted(by_position[:-1], reverse=True)


def test_rescues_add_up(told_and_counted: Run) -> None:
    told, page, _ = told_and_counted
    rescues = page["racer_csd_rescues_total"]
    assert 0 < rescues == sum(one["rescues"] for one in told)
    assert rescues + page["racer_csd_refused_by_gate_total"] <= page["racer_csd_nominated_total"]
    assert page["racer_ocm_entries"] > 0
    assert page["racer_store_degraded"] == 0


def test_seconds_add_up(told_and_counted: Run) -> None:
    _, page, wall = told_and_counted
    phases = labelled(page, "phase_seconds_total", "phase", PHASES)
    assert all(seconds > 0 for seconds in phases)
    assert sum(phases) <= page["racer_decode_seconds_total"] <= wall
    assert page["racer_plain_equivalent_seconds_total"] > 0


def test_an_idle_engine_holds_no_session_state(told_and_counted: Run) -> None:
    _, page, _ = told_and_counted
    for name in (
        "sessions",
        "automaton_nodes",
        'copy_logit_rows{layer="session"}',
        "num_requests_running",
        "kv_cache_usage_ratio",
    ):
        assert page[f"racer_{name}"] == 0, name
    assert page['racer_copy_logit_rows{layer="warm"}'] > 0
