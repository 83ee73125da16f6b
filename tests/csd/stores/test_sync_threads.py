"""The exchange in its own thread, with real stores."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from csd.stores.base import Batch, Store, StoreMisfit
from csd.stores.sync import StoreSync
from tests.csd.stores.conftest import NewStore
from tests.csd.stores.support import AddingMemory, WishedStore, store_at
from tests.servers import RedisServer
from tests.waiting import wait_until

NewSync = Callable[[Store], StoreSync]


@pytest.fixture
def new_sync() -> Iterator[NewSync]:
    """Starts one with its own memory."""
    syncs: list[StoreSync] = []

    def make(store: Store) -> StoreSync:
        syncs.append(StoreSync(AddingMemory(), store, interval=0.05))
        syncs[-1].start()
        return syncs[-1]

    yield make
    for sync in syncs:
        sync.close()


def memory_of(sync: StoreSync) -> AddingMemory:
    assert isinstance(sync.memory, AddingMemory)
    return sync.memory


def test_two_replicas_learn_from_each_other(url: str, new_sync: NewSync) -> None:
    one, other = new_sync(store_at(url)), new_sync(store_at(url))
    for _ in range(20):
        memory_of(one).record(1, 2)
        memory_of(other).record(1, 2)
        memory_of(other).record(3, 4)
        assert one.flush(10.0) and other.flush(10.0)
    expected = {(1, 2): 40, (3, 4): 20}
    wait_until(lambda: memory_of(one).counts == expected == memory_of(other).counts)
    assert one.state == other.state == "ok" and not one.errors and not other.errors


def test_who_changes_the_table_sees_it_however_dear_a_refresh_is() -> None:
    ticks = itertools.count(step=100)  # seconds: each load takes so long that the next is put off
    sync = StoreSync(AddingMemory(), WishedStore(), interval=60.0, clock=lambda: float(next(ticks)))
    sync.start()
    memory_of(sync).record(1, 2)
    assert sync.flush(10.0)
    sync.call(lambda store: store.apply(Batch(((3, 4, 5.0),))))
    assert sync.flush(10.0)
    assert memory_of(sync).counts == {(1, 2): 1, (3, 4): 5}
    assert sync.close()


def test_close_sends_what_is_left(url: str, new_sync: NewSync, new_store: NewStore) -> None:
    sync = new_sync(store_at(url))
    memory_of(sync).record(1, 2, 5)
    assert sync.close(10.0) and sync.state == "off"
    assert new_store(url).counts() == {(1, 2): 5.0}
    assert sync.flush(1.0) is False


def test_clear_empties_store_and_memories(url: str, new_sync: NewSync) -> None:
    one, other = new_sync(store_at(url)), new_sync(store_at(url))
    memory_of(one).record(1, 2)
    assert one.flush(10.0)
    wait_until(lambda: memory_of(other).counts == {(1, 2): 1})
    one.clear()
    assert memory_of(one).counts == {}
    wait_until(lambda: memory_of(other).counts == {})
    assert one.call(lambda store: store.load()).entries == []


def test_a_server_that_comes_later_is_found(server: RedisServer, new_sync: NewSync, new_store: NewStore) -> None:
    server.kill9()
    sync = new_sync(store_at(server.url))
    memory_of(sync).record(1, 2)
    assert sync.flush(0.2) is False
    assert sync.state == "degraded" and sync.errors["connection"] >= 1
    server.start()
    assert sync.flush(20.0) and sync.last_error is None
    assert new_store(server.url).counts() == {(1, 2): 1.0}


def test_a_paused_server_keeps_nobody_waiting(server: RedisServer, new_sync: NewSync, new_store: NewStore) -> None:
    sync = new_sync(store_at(server.url))
    assert sync.flush(10.0)
    server.pause()
    memory_of(sync).record(1, 2)
    started = time.monotonic()
    assert sync.flush() is False
    assert time.monotonic() - started < 0.1
    wait_until(lambda: sync.errors["timeout"] >= 2)
    server.resume()
    assert sync.flush(20.0) and memory_of(sync).counts == {(1, 2): 1}
    assert new_store(server.url).counts() == {(1, 2): 1.0}


def test_kills_in_mid_run_lose_and_double_nothing(server: RedisServer, new_sync: NewSync, new_store: NewStore) -> None:
    sync = new_sync(store_at(server.url))
    for _ in range(3):
        goal = sync.acknowledged + 5
        for token in range(50):
            memory_of(sync).record(50, token)
            sync.flush()
        wait_until(lambda goal=goal: sync.acknowledged >= goal)  # type: ignore[misc]
        server.restart()
    assert sync.flush(20.0)
    assert new_store(server.url).counts() == {(50, token): 3.0 for token in range(50)} == memory_of(sync).counts


def test_flushall_in_mid_run(server: RedisServer, new_sync: NewSync) -> None:
    sync = new_sync(store_at(server.url))
    memory_of(sync).record(1, 2, 9)
    assert sync.flush(10.0)
    server.command("FLUSHALL")
    wait_until(lambda: memory_of(sync).counts == {})
    memory_of(sync).record(3, 4)
    assert sync.flush(10.0) and memory_of(sync).counts == {(3, 4): 1} and sync.state == "ok"


def test_close_does_not_wait_for_a_store_that_is_away(server: RedisServer, new_sync: NewSync) -> None:
    server.kill9()
    sync = new_sync(store_at(server.url))
    memory_of(sync).record(1, 2)
    started = time.monotonic()
    assert sync.close(30.0) is False
    assert time.monotonic() - started < 10.0 and sync.state == "off"


def test_a_wrong_password_shows_and_a_hanging_close_ends(new_sync: NewSync) -> None:
    store = WishedStore()
    store.failing = StoreMisfit("wrong password", "auth")
    sync = new_sync(store)
    wait_until(lambda: sync.last_error == "wrong password")
    release = threading.Event()

    async def hang() -> None:
        await asyncio.to_thread(release.wait, 30.0)

    store.open = hang  # type: ignore[method-assign]
    started = time.monotonic()
    assert sync.close(0.2) is False
    assert time.monotonic() - started < 5.0
    release.set()
