"""200 mixed requests on a real tiny engine: what the metrics say adds up, and agrees with what the clients were told."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from starlette.testclient import TestClient

from app.engine.correction import CsdConfig
from app.engine.engine import Engine, EngineConfig
from app.engine.events import PHASES, SOURCE_NAMES, StepRecord
from app.metrics import FINISHED_REASONS, POSITIONS
from tests.api.support import COMPLETIONS, client_of, samples, stream
from tests.engine.drafting import CHEAP, FLAT
from tests.tiny import loaded
from tests.waiting import wait_until

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


class Run(NamedTuple):
    """What the clients were told, the page afterwards, every step, and the pairs in the correction memory."""

    told: list[dict[str, Any]]
    page: dict[str, float]
    steps: list[StepRecord]
    pairs: int


class Listener:
    """Keeps every step record, and passes all on."""

    def __init__(self, metrics: Any) -> None:
        self.steps: list[StepRecord] = []
        self._metrics = metrics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metrics, name)

    def step(self, record: StepRecord) -> None:
        self.steps.append(record)
        self._metrics.step(record)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    store = tmp_path_factory.mktemp("store") / "ocm.sqlite3"

    csd = CsdConfig(allowed=True, store=f"sqlite:{store}")
    config = EngineConfig(max_nodes=24, prior_rows=0, cost_curve=FLAT, draft_curve=CHEAP, csd=csd, max_running=4)
    engine = Engine(loaded(), config, draft=loaded(seed=1))
    with client_of(lambda: engine, allow_csd=True, max_queued=REQUESTS) as client, ThreadPoolExecutor(8) as threads:
        before = samples(client)
        listener = Listener(engine.observer)
        engine.observer = listener
        told = list(threads.map(lambda number: ask(client, number), range(REQUESTS)))
        wait_until(lambda: samples(client)["racer_num_requests_running"] == 0)
        assert all(value == 0 for name, value in before.items() if name.endswith("_total") and "process" not in name)
        assert engine.corrections is not None
        return Run(told, samples(client), listener.steps, len(engine.corrections.memory))


def labelled(page: dict[str, float], name: str, label: str, values: tuple[str, ...]) -> list[float]:
    return [page[f'racer_{name}{{{label}="{value}"}}'] for value in values]


@pytest.mark.slow
def test_tokens_add_up(run: Run) -> None:
    told, page = run.told, run.page
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


@pytest.mark.slow
def test_speculation_adds_up(run: Run) -> None:
    told, page = run.told, run.page
    accepted, drafted = page["racer_spec_decode_num_accepted_tokens_total"], page["racer_spec_decode_num_draft_tokens_total"]
    steps = page["racer_verify_steps_total"]
    assert 0 < accepted <= drafted
    assert accepted == sum(one["num_accepted_draft_tokens"] for one in told)
    assert drafted == sum(one["num_draft_tokens"] for one in told)
    assert steps == sum(one["num_spec_steps"] for one in told)
    assert 0 < page["racer_spec_decode_num_drafts_total"] < steps
    assert page["racer_nodes_verified_total"] == drafted + steps == page["racer_nodes_per_step_sum"]
    assert steps == page["racer_accepted_length_count"] == page["racer_nodes_per_step_count"]
    assert accepted == page["racer_accepted_length_sum"]
    by_position = labelled(page, "spec_decode_num_accepted_tokens_per_pos_total", "position", POSITIONS)
    assert sum(by_position) == accepted
    assert by_position[:-1] == sorted(by_position[:-1], reverse=True)


def test_rescues_add_up(run: Run) -> None:
    told, page = run.told, run.page
    rescues = page["racer_csd_rescues_total"]
    assert 0 < rescues == sum(one["rescues"] for one in told)
    assert page["racer_csd_refused_by_gate_total"] == sum(one["rescues_refused_by_gate"] for one in told)
    assert page["racer_ocm_entries"] == run.pairs > 0
    assert page["racer_store_degraded"] == 0


def test_the_page_is_the_sum_of_the_steps(run: Run) -> None:
    sums = {
        "verify_steps": sum(step.sessions for step in run.steps),
        "spec_decode_num_drafts": sum(budget > 1 for step in run.steps for budget in step.budgets),
        "nodes_verified": sum(sum(step.budgets) for step in run.steps),
        "spec_decode_num_draft_tokens": sum(sum(step.budgets) - step.sessions for step in run.steps),
        "spec_decode_num_accepted_tokens": sum(sum(step.accepted_lengths) for step in run.steps),
        "csd_rescues": sum(step.rescues for step in run.steps),
        "csd_nominated": sum(step.nominated for step in run.steps),
        "csd_refused_by_gate": sum(step.refused_by_gate for step in run.steps),
        "decode_seconds": sum(step.seconds for step in run.steps),
        "plain_equivalent_seconds": sum(step.plain_seconds for step in run.steps),
    }
    assert {name: run.page[f"racer_{name}_total"] for name in sums} == pytest.approx(sums)
    for values, name, label in ((PHASES, "phase_seconds_total", "phase"), (SOURCE_NAMES, "tokens_total", "source")):
        field = "phase_seconds" if label == "phase" else "emitted_by_source"
        expected = {value: sum(getattr(step, field).get(value, 0) for step in run.steps) for value in values}
        if label == "source":
            expected["target"] += REQUESTS  # the first tokens, of no step
        assert dict(zip(values, labelled(run.page, name, label, values), strict=True)) == pytest.approx(expected)
    assert run.page["racer_budget_nodes"] == run.steps[-1].nodes / run.steps[-1].sessions


def test_each_step_adds_up(run: Run) -> None:
    for step in run.steps:
        assert step.sessions == len(step.accepted_lengths) == len(step.budgets)
        assert step.nodes == sum(step.budgets) == step.drafted + step.sessions
        assert step.drafts == sum(budget > 1 for budget in step.budgets)
        assert sum(step.emitted_by_source.values()) == sum(step.accepted_lengths) + step.sessions
        assert all(kept < budget for kept, budget in zip(step.accepted_lengths, step.budgets, strict=True))
        assert step.rescues + step.refused_by_gate <= step.nominated
        assert set(step.phase_seconds) == set(PHASES)
        assert 0 < sum(step.phase_seconds.values()) <= step.seconds
        assert step.plain_seconds > 0
    assert max(step.sessions for step in run.steps) > 1  # they ran together


def test_an_idle_engine_holds_no_session_state(run: Run) -> None:
    page = run.page
    for name in (
        "sessions",
        "automaton_nodes",
        'copy_logit_rows{layer="session"}',
        "num_requests_running",
        "kv_cache_usage_ratio",
    ):
        assert page[f"racer_{name}"] == 0, name
    assert page['racer_copy_logit_rows{layer="warm"}'] > 0
