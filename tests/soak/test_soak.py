"""The soak for twenty seconds; `make soak` runs it for ten minutes, with tighter bounds."""

from __future__ import annotations

from collections.abc import Callable

from tests.csd.stores.conftest import new_server  # noqa: F401 - a fixture
from tests.servers import RedisServer
from tests.soak.soak import SHORT, soak
from tests.soak.watch import fallen


def test_twenty_seconds(new_server: Callable[..., RedisServer]) -> None:  # noqa: F811
    redis = new_server()
    report = soak(redis.directory, redis, 20.0, SHORT)
    assert report.problems == [], str(report)
    ledger = report.ledger
    assert ledger.compared > 25
    assert ledger.dropped > 0
    assert set(report.faults.done) == {"pause", "kill9", "fill", "flush"}
    assert report.page["racer_csd_rescues_total"] > 0
    assert report.page['racer_request_success_total{finished_reason="cancelled"}'] > 0


def test_a_counter_that_falls_is_seen() -> None:
    before = {"racer_a_total": 3.0, 'racer_b_bucket{le="1"}': 1.0, "racer_gauge": 5.0}
    assert fallen(before, {"racer_a_total": 3.0, 'racer_b_bucket{le="1"}': 2.0, "racer_gauge": 0.0}) == []
    assert fallen(before, {"racer_a_total": 2.0, "racer_gauge": 0.0}) == [
        "racer_a_total fell from 3.0 to 2.0",
        'racer_b_bucket{le="1"} fell from 1.0 to None',
    ]
