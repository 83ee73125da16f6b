"""The exchange between memory and store, round by round, with a store that fails on demand."""

from __future__ import annotations

import asyncio
import logging

import pytest

from csd.stores.base import Batch, Snapshot, StoreError, StoreMisfit, StoreUnavailable
from csd.stores.sync import FIRST_PAUSE, LONGEST_PAUSE, MISFIT_PAUSE, StoreSync
from tests.csd.stores.support import AddingMemory, WishedStore

AWAY = StoreUnavailable("away", "connection")
WRONG = StoreMisfit("wrong password", "auth")


class Rounds:
    """A memory and a wished store; rounds run when told."""

    def __init__(self) -> None:
        self.memory = AddingMemory()
        self.store = WishedStore()
        self.now = 0.0
        self.sync = StoreSync(self.memory, self.store, interval=2.0, clock=lambda: self.now)

    def round(self) -> float:
        return asyncio.run(self.sync.round())


@pytest.fixture
def rounds() -> Rounds:
    return Rounds()


def test_what_was_recorded_is_sent_once(rounds: Rounds) -> None:
    assert rounds.sync.state == "degraded"
    rounds.memory.record(1, 2, 3)
    assert rounds.round() == 2.0
    assert rounds.round() == 2.0
    assert rounds.store.table == {(1, 2): 3.0} == rounds.memory.counts
    assert (rounds.sync.state, rounds.sync.acknowledged, len(rounds.store.seen)) == ("ok", 1, 1)


def test_own_batches_cause_no_refresh_and_others_do(rounds: Rounds) -> None:
    rounds.store.write(Batch(((1, 2, 1.0),)))
    rounds.round()
    rounds.memory.record(1, 2)
    rounds.round()
    assert rounds.store.loads == 1
    rounds.store.write(Batch(((1, 2, 5.0), (7, 8, 1.0))))
    rounds.memory.record(1, 2)
    rounds.round()
    assert rounds.store.loads == 2
    assert rounds.memory.counts == {(1, 2): 8, (7, 8): 1} == rounds.store.table


def test_an_unacknowledged_batch_is_sent_again_unchanged(rounds: Rounds) -> None:
    rounds.store.reply_lost = True
    rounds.memory.record(1, 2)
    rounds.round()
    rounds.memory.record(1, 2)
    rounds.round()
    assert rounds.store.table == {(1, 2): 1.0} and rounds.sync.acknowledged == 0
    rounds.store.reply_lost = False
    rounds.round()
    assert rounds.store.table == {(1, 2): 2.0} == rounds.memory.counts
    assert rounds.sync.acknowledged == 2


def test_pauses_double_up_to_a_bound_and_start_anew(rounds: Rounds, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rounds.store.failing = AWAY
    pauses = [rounds.round() for _ in range(8)]
    assert pauses == [FIRST_PAUSE, 1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert rounds.sync.errors == {"connection": 8} and rounds.sync.last_error == "away" and rounds.sync.state == "degraded"
    assert len(caplog.records) == 1
    rounds.store.failing = None
    assert rounds.round() == 2.0
    assert rounds.sync.last_error is None and [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    rounds.store.failing = AWAY
    assert rounds.round() == FIRST_PAUSE


def test_a_misfit_is_retried_slowly(rounds: Rounds) -> None:
    rounds.store.failing = WRONG
    assert [rounds.round(), rounds.round()] == [MISFIT_PAUSE, MISFIT_PAUSE]
    assert (rounds.sync.state, rounds.sync.errors, rounds.sync.last_error) == ("degraded", {"auth": 2}, "wrong password")
    rounds.store.failing = None
    rounds.round()
    assert rounds.sync.state == "ok"


def test_an_error_nobody_thought_of_is_survived(rounds: Rounds) -> None:
    rounds.memory.record(1, 2)
    rounds.store.failing = ZeroDivisionError("s3cret")
    assert rounds.round() == FIRST_PAUSE
    assert rounds.sync.errors == {"internal": 1} and rounds.sync.last_error == "ZeroDivisionError"
    rounds.store.failing = None
    rounds.round()
    assert rounds.store.table == {(1, 2): 1.0}


def test_a_full_store_is_still_learned_from(rounds: Rounds) -> None:
    rounds.store.write(Batch(((5, 6, 9.0),)))
    rounds.store.read_only = True
    rounds.memory.record(1, 2)
    rounds.round()
    assert rounds.sync.state == "degraded" and rounds.memory.counts == {(5, 6): 9, (1, 2): 1}
    rounds.store.read_only = False
    rounds.round()
    assert rounds.memory.counts == {(5, 6): 9, (1, 2): 1} == rounds.store.table


def test_a_lost_table_is_the_truth_but_what_waits_is_kept(rounds: Rounds, caplog: pytest.LogCaptureFixture) -> None:
    rounds.memory.record(1, 2, 9)
    rounds.round()
    rounds.store.table.clear()
    rounds.store.number = 0
    rounds.store.read_only = True
    rounds.memory.record(3, 4)
    rounds.round()
    assert rounds.memory.counts == {(3, 4): 1}
    assert sum("lost" in record.message for record in caplog.records) == 1


def test_large_tables_are_refreshed_less_often(rounds: Rounds) -> None:
    load = rounds.store.load

    async def slow_load() -> Snapshot:
        rounds.now += 1.0
        return await load()

    rounds.store.load = slow_load  # type: ignore[method-assign]
    rounds.round()
    for seconds, loads in ((1.0, 1), (18.0, 1), (2.0, 2), (1.0, 2)):
        rounds.now += seconds
        rounds.store.write(Batch(((1, 2, 1.0),)))
        rounds.round()
        assert rounds.store.loads == loads


def test_a_table_lost_before_its_first_refresh_is_noticed(rounds: Rounds) -> None:
    load = rounds.store.load

    async def slow_load() -> Snapshot:
        rounds.now += 1.0
        return await load()

    rounds.store.load = slow_load  # type: ignore[method-assign]
    rounds.round()  # version 0
    rounds.memory.record(1, 2)
    rounds.round()  # acknowledged, and the refresh put off
    assert rounds.store.loads == 1
    rounds.store.table.clear()
    rounds.store.number = 0
    rounds.round()
    assert rounds.memory.counts == {}


def test_long_records_go_in_several_batches(rounds: Rounds) -> None:
    for token in range(12_000):
        rounds.memory.record(12_000, token)
    rounds.round()
    assert len(rounds.store.seen) == 3 and len(rounds.store.table) == 12_000


def test_no_store() -> None:
    sync = StoreSync(AddingMemory(), None)
    sync.start()
    assert (sync.state, sync.flush(1.0), sync.close()) == ("off", True, True)
    with pytest.raises(StoreError, match="no store"):
        sync.call(lambda store: store.version())
