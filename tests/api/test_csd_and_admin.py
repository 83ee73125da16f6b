"""The csd verifier over HTTP, what the operator sees of its memory, and the admin routes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.engine.correction import CsdConfig
from app.engine.engine import Engine, EngineConfig
from csd.exchange import read, write
from tests.api.support import COMPLETIONS, check_error, client_of
from tests.engine.drafting import CHEAP, FLAT, similar
from tests.synthetic import SyntheticEngine
from tests.tiny import loaded
from tests.waiting import wait_until

ADMIN = {"Authorization": "Bearer root"}
TABLE = {**ADMIN, "Content-Type": "application/x-ndjson"}
BODY: dict[str, Any] = {"prompt": "hello world", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
EAGER = {"drafter": "draft_model", "verifier": "csd", "rule": "scg", "tau": 1e-12, "trace": True}


@pytest.fixture
def rescuing(tmp_path: Path) -> Iterator[TestClient]:
    rescue = CsdConfig(allowed=True, store=f"sqlite:{tmp_path / 'ocm.sqlite3'}")
    config = EngineConfig(max_nodes=24, prior_rows=0, csd=rescue, cost_curve=FLAT, draft_curve=CHEAP)
    engine = Engine(loaded(), config, draft=similar())
    with client_of(lambda: engine, admin_key="root", api_keys="user") as client:
        wait_until(lambda: client.get("/ready").status_code == 200)
        yield client


def ask(client: TestClient, **speculative: Any) -> Any:
    return client.post(COMPLETIONS, json={**BODY, "speculative": speculative}, headers={"Authorization": "Bearer user"})


def page(client: TestClient) -> dict[str, float]:
    lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_reply_tells_its_verifier_its_rescues_and_marks_each(rescuing: TestClient):
    reply = ask(rescuing, **EAGER)
    assert reply.status_code == 200, reply.text
    figures = reply.json()["metrics"]["speculative_decoding"]
    marks = [token["rescued"] for token in reply.json()["choices"][0]["trace"]]
    assert figures["verifier"] == "csd" and figures["rescues"] == sum(marks) > 0, figures
    metrics = page(rescuing)
    assert metrics["racer_csd_rescues_total"] == figures["rescues"]
    assert metrics["racer_csd_refused_by_gate_total"] == figures["rescues_refused_by_gate"]
    exact = ask(rescuing).json()["metrics"]["speculative_decoding"]
    assert exact["verifier"] == "exact" and exact["rescues"] == 0


def test_the_state_of_the_store_is_in_ready_and_in_the_metrics(rescuing: TestClient):
    reply = ask(rescuing, drafter="draft_model", verifier="csd", max_nodes=7)
    assert reply.status_code == 200, reply.text
    wait_until(lambda: rescuing.get("/ready").json()["store"]["state"] == "ok")
    store = rescuing.get("/ready").json()["store"]
    assert store["entries"] == page(rescuing)["racer_ocm_entries"] > 0
    assert page(rescuing)["racer_ocm_recorded_total"] >= store["entries"]
    assert store["name"].startswith("sqlite") and store["last_error"] is None
    assert page(rescuing)["racer_store_degraded"] == 0


@pytest.mark.parametrize(
    ("speculative", "param"),
    [
        ({"verifier": "csd", "tau": 0}, "speculative.tau"),
        ({"verifier": "csd", "tau": 1.01}, "speculative.tau"),
        ({"verifier": "csd", "lambda": -1}, "speculative.lambda"),
        ({"verifier": "csd", "rule": "static"}, "speculative.rule"),
        ({"verifier": "lossy"}, "speculative.verifier"),
        ({"verifier": "exact", "tau": 0.5}, "speculative.tau"),
        ({"lambda": 3}, "speculative.lambda"),
        ({"drafter": "eagle"}, "speculative.drafter"),
    ],
)
def test_values_that_cannot_be_name_their_field(rescuing: TestClient, speculative: dict[str, Any], param: str):
    reply = ask(rescuing, **speculative)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_without_allow_csd_it_is_refused_and_nothing_is_kept():
    engine = Engine(loaded(), EngineConfig(max_nodes=8, prior_rows=0))
    with client_of(lambda: engine, admin_key="root") as client:
        wait_until(lambda: client.get("/ready").status_code == 200)
        reply = client.post(COMPLETIONS, json={**BODY, "speculative": {"verifier": "csd"}})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "speculative.verifier")
        needs_draft = client.post(COMPLETIONS, json={**BODY, "speculative": {"drafter": "hybrid"}})
        assert (needs_draft.status_code, needs_draft.json()["error"]["param"]) == (400, "speculative.drafter")
        assert client.get("/ready").json()["store"] is None
        assert client.get("/admin/ocm", headers=ADMIN).status_code == 400


def test_a_table_is_shown_exported_cleared_and_imported_again(rescuing: TestClient):
    ask(rescuing, drafter="draft_model", max_nodes=7)
    shown = rescuing.get("/admin/ocm", headers=ADMIN).json()
    assert shown["entries"] == len(shown["most_frequent"]) > 0
    exported = rescuing.get("/admin/ocm/export", headers=ADMIN)
    assert exported.headers["content-type"].startswith("application/x-ndjson")
    lines = exported.text.splitlines()
    assert json.loads(lines[0])["entries"] == len(lines) - 1 == shown["entries"]
    assert rescuing.delete("/admin/ocm", headers=ADMIN).json() == {"entries": 0}
    broken = rescuing.post("/admin/ocm/import", content="\n".join([*lines[:-1], "{}"]) + "\n", headers=TABLE)
    assert broken.status_code == 400 and f"line {len(lines)}" in broken.json()["error"]["message"]
    assert rescuing.get("/admin/ocm", headers=ADMIN).json()["entries"] == 0
    brought = rescuing.post("/admin/ocm/import", content=exported.content, headers=TABLE)
    assert brought.json()["added"] == shown["entries"]
    again = rescuing.get("/admin/ocm", headers=ADMIN).json()
    assert again["most_frequent"] == shown["most_frequent"]


def test_a_batch_with_a_name_counts_once(rescuing: TestClient):
    shown = rescuing.get("/admin/ocm", headers=ADMIN).json()
    table = io.BytesIO()
    write(table, shown["fingerprint"], [(13, 14, 3.0)])
    for name, added, count in (("monday", 1, 3.0), ("monday", 0, 3.0), ("tuesday", 1, 6.0), (None, 1, 9.0), (None, 1, 12.0)):
        query = {} if name is None else {"batch": name}
        brought = rescuing.post("/admin/ocm/import", params=query, content=table.getvalue(), headers=TABLE)
        assert brought.json() == {"added": added, "entries": 1}
        (pair,) = rescuing.get("/admin/ocm", headers=ADMIN).json()["most_frequent"]
        assert pair == {"draft": 13, "target": 14, "count": count, "draft_text": "a", "target_text": "b"}
    exported = io.BytesIO(rescuing.get("/admin/ocm/export", headers=ADMIN).content)
    assert read(exported, shown["fingerprint"]) == [(13, 14, 12.0)]


def test_a_foreign_table_is_refused(rescuing: TestClient):
    header = json.dumps({"format": "racer-ocm", "schema": 1, "fingerprint": "0" * 32, "entries": 0})
    check_error(rescuing.post("/admin/ocm/import", content=header + "\n", headers=ADMIN), 415)
    reply = rescuing.post("/admin/ocm/import", content=header + "\n", headers=TABLE)
    assert reply.status_code == 400


@pytest.mark.parametrize(("method", "path"), [("GET", "/admin/ocm"), ("GET", "/admin/ocm/export"), ("DELETE", "/admin/ocm")])
def test_the_admin_routes_take_the_admin_key_alone(rescuing: TestClient, method: str, path: str):
    assert rescuing.request(method, path).status_code == 401
    assert rescuing.request(method, path, headers={"Authorization": "Bearer user"}).status_code == 401
    assert rescuing.request(method, path, headers=ADMIN).status_code == 200


def test_without_an_admin_key_they_are_off(client: TestClient, engine: SyntheticEngine):
    reply = client.get("/admin/ocm", headers=ADMIN)
    assert reply.status_code == 403 and "admin_key" in reply.json()["error"]["message"]
