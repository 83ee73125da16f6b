"""Redis: away, killed, paused, full, flushed, foreign."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from csd.stores.base import DEFAULT_TTL, Batch, StoreError, StoreMisfit, StoreUnavailable
from csd.stores.redis_errors import TIMEOUT
from tests.csd.stores.conftest import NewServer, NewStore
from tests.csd.stores.support import FINGERPRINT
from tests.servers import RedisServer, ReplyDropper, canned_replies, free_port

PAIRS = f"racer:ocm:1:{{{FINGERPRINT}}}"
KEYS = (PAIRS, f"{PAIRS}:version", f"{PAIRS}:batches")


@pytest.fixture
def dropper(server: RedisServer) -> Iterator[ReplyDropper]:
    proxy = ReplyDropper(server.port)
    yield proxy
    proxy.close()


def test_every_key_lives_for_a_time_that_each_write_renews(server: RedisServer, new_store: NewStore) -> None:
    new_store(server.url, ttl=100).add((1, 2, 1.0))
    new_store(server.url).add((1, 2, 1.0))
    assert server.command("DBSIZE") == b":3\r\n"
    for key in KEYS:
        assert DEFAULT_TTL - 60 < int(server.command("TTL", key)[1:]) <= DEFAULT_TTL
    new_store(server.url, "cleared only").clear()
    assert server.command("DBSIZE") == b":4\r\n"
    assert int(server.command("TTL", "racer:ocm:1:{cleared only}:version")[1:]) > 0


def test_away(new_store: NewStore) -> None:
    store = new_store(f"redis://:s3cret@127.0.0.1:{free_port()}/0")
    for use in (store.open, store.version, store.load, store.clear, lambda: store.add((1, 2, 1.0))):
        with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
            use()
        assert caught.value.kind == "connection" and "s3cret" not in str(caught.value)


def test_a_lost_reply_is_no_doubled_batch(server: RedisServer, dropper: ReplyDropper, new_store: NewStore) -> None:
    store = new_store(f"redis://127.0.0.1:{dropper.port}/0")
    batch = Batch(((1, 2, 1.0),))
    dropper.dropping = True
    with pytest.raises(StoreUnavailable):
        store.apply(batch)
    assert dropper.dropped == 2  # the client's own repetition is the same batch too
    server.restart()
    dropper.dropping = False
    store.apply(batch)
    assert new_store(server.url).counts() == {(1, 2): 1.0}


def test_idle_connections_closed_by_the_server_are_not_noticed(server: RedisServer, new_store: NewStore) -> None:
    store = new_store(server.url)
    store.add((1, 2, 1.0))
    server.command("CLIENT", "KILL", "TYPE", "normal")
    store.add((1, 2, 1.0))
    server.restart()
    assert store.counts() == {(1, 2): 2.0}


def test_paused(server: RedisServer, new_store: NewStore) -> None:
    store = new_store(server.url)
    store.open()
    batch = Batch(((1, 2, 1.0),))
    server.pause()
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="does not answer") as caught:
        store.apply(batch)
    assert time.monotonic() - started < 4 * TIMEOUT and caught.value.kind == "timeout"
    server.resume()
    store.apply(batch)
    assert store.counts() == {(1, 2): 1.0}


def test_full(new_server: NewServer, new_store: NewStore) -> None:
    server = new_server(maxmemory="4mb", **{"maxmemory-policy": "noeviction"})
    store = new_store(server.url)
    store.add((1, 2, 1.0))
    assert server.command("SET", "filler", "x" * 60_000).startswith(b"+OK")
    server.command("CONFIG", "SET", "maxmemory", "100kb")
    batch = Batch(tuple((1000, token, 1.0) for token in range(1000)))
    version = store.version()
    with pytest.raises(StoreUnavailable, match="is full; raise maxmemory") as caught:
        store.apply(batch)
    assert caught.value.kind == "full"
    assert (store.version(), store.counts()) == (version, {(1, 2): 1.0})
    server.command("CONFIG", "SET", "maxmemory", "100mb")
    store.apply(batch)
    assert len(store.counts()) == 1001


def test_a_full_server_keeps_the_table_that_was_to_be_replaced(new_server: NewServer, new_store: NewStore) -> None:
    server = new_server(maxmemory="4mb", **{"maxmemory-policy": "noeviction"})
    store = new_store(server.url)
    version = store.add((1, 2, 1.0))
    with pytest.raises(StoreUnavailable, match="is full; raise maxmemory"):
        store.replace(*((draft, target, 1.0) for draft in range(100) for target in range(1_000)))
    assert (store.version(), store.counts()) == (version, {(1, 2): 1.0})
    assert server.command("KEYS", "*:import:*") == b"*0\r\n"


@pytest.mark.parametrize("member", ["foo", "1:2147483648", "1"])
def test_an_entry_that_cannot_be(server: RedisServer, new_store: NewStore, member: str) -> None:
    server.command("ZADD", PAIRS, "5", member)
    with pytest.raises(StoreMisfit, match="something else than a table"):
        new_store(server.url).load()


def test_flushed(server: RedisServer, new_store: NewStore) -> None:
    store = new_store(server.url)
    version = store.add((1, 2, 1.0))
    server.command("FLUSHALL")
    snapshot = store.load()
    assert (store.version(), snapshot.version, snapshot.entries) == (0, 0, [])
    assert store.add((3, 4, 1.0)) > version + 1  # not mistaken for one more batch on the old table
    assert store.counts() == {(3, 4): 1.0}


@pytest.mark.parametrize("key", KEYS)
def test_the_wrong_type_at_a_key(server: RedisServer, new_store: NewStore, key: str) -> None:
    server.command("HSET", key, "field", "kept")
    store = new_store(server.url)
    for use in (store.open, store.clear, lambda: store.add((1, 2, 1.0)), store.load if key != KEYS[2] else store.open):
        with pytest.raises(StoreMisfit, match="something else than a table") as caught:
            use()
        assert caught.value.kind == "type"
    assert server.command("HGET", key, "field") == b"$4\r\nkept\r\n" and server.command("DBSIZE") == b":1\r\n"


@pytest.mark.parametrize("words", [("ZADD", KEYS[0], "1", "no pair"), ("ZADD", KEYS[0], "-1", "1:2"), ("SET", KEYS[1], "new")])
def test_the_right_type_with_foreign_content(server: RedisServer, new_store: NewStore, words: tuple[str, ...]) -> None:
    server.command(*words)
    with pytest.raises(StoreMisfit, match="something else than a table"):
        new_store(server.url).load()


def test_another_schema_s_table_is_neither_read_nor_touched(server: RedisServer, new_store: NewStore) -> None:
    server.command("HSET", f"racer:ocm:0:{{{FINGERPRINT}}}", "1:2", "99")
    store = new_store(server.url)
    assert store.counts() == {}
    store.add((1, 2, 1.0))
    store.clear()
    assert server.command("HGET", f"racer:ocm:0:{{{FINGERPRINT}}}", "1:2") == b"$2\r\n99\r\n"


def test_passwords(new_server: NewServer, new_store: NewStore) -> None:
    server = new_server(requirepass="s3cret")
    new_store(server.url).add((1, 2, 1.0))
    for wrong in (server.url.replace("s3cret", "wr0ng"), server.url.replace(":s3cret@", "")):
        with pytest.raises(StoreMisfit, match="refuses the user or password") as caught:
            new_store(wrong).open()
        assert caught.value.kind == "auth" and "wr0ng" not in str(caught.value)


def test_a_password_where_none_is_set(server: RedisServer, new_store: NewStore) -> None:
    with pytest.raises(StoreMisfit, match="password"):
        new_store(server.url.replace("redis://", "redis://:s3cret@")).open()


def test_a_database_that_does_not_exist(server: RedisServer, new_store: NewStore) -> None:
    with pytest.raises(StoreMisfit, match="no such database"):
        new_store(f"redis://127.0.0.1:{server.port}/9999").open()


def test_a_user_without_rights(server: RedisServer, new_store: NewStore) -> None:
    server.command("ACL", "SETUSER", "guest", "on", ">pw", "~*", "+ping")
    with pytest.raises(StoreMisfit, match="grant INFO, EVAL"):
        new_store(f"redis://guest:pw@127.0.0.1:{server.port}/0").open()


def test_a_unix_socket(new_server: NewServer, new_store: NewStore) -> None:
    server = new_server(unixsocket="socket")
    store = new_store(f"unix://{server.directory / 'socket'}")
    store.add((1, 2, 1.0))
    assert store.counts() == {(1, 2): 1.0}


@pytest.mark.parametrize(
    ("reply", "misfit", "kind"),
    [
        ("-LOADING Redis is loading the dataset in memory", False, "loading"),
        ("-READONLY You can't write against a read only replica.", False, "readonly"),
        ("-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", False, "loading"),
        ("-CLUSTERDOWN The cluster is down", False, "loading"),
        ("-MISCONF Redis is configured to save RDB snapshots, but it's unable to persist to disk.", False, "full"),
        ("-BUSY Redis is busy running a script.", False, "busy"),
        ("-OOM command not allowed when used memory > 'maxmemory'.", False, "full"),
        ("-ERR Error running script: @user_script:20: -OOM command not allowed when used memory > 'maxmemory'.", False, "full"),
        ("-MOVED 3999 127.0.0.1:6381", True, "cluster"),
        ("-NOPERM this user has no permissions to run the 'eval' command", True, "auth"),
        ("-NOAUTH Authentication required.", True, "auth"),
        ("-ERR something new", False, "other"),
    ],
)
def test_what_replies_mean(new_store: NewStore, reply: str, misfit: bool, kind: str) -> None:
    server = canned_replies({"EVAL": reply})
    with pytest.raises(StoreError) as caught:
        new_store(f"redis://127.0.0.1:{server.port}/0").add((1, 2, 1.0))
    assert (isinstance(caught.value, StoreMisfit), caught.value.kind) == (misfit, kind)
    server.close()


@pytest.mark.parametrize("release", ["5.0.14", "2.8.24", "", "weird"])
def test_an_old_server_is_refused(new_store: NewStore, release: str) -> None:
    server = canned_replies({"INFO": f"# Server\r\nredis_version:{release}\r\n"})
    with pytest.raises(StoreMisfit, match=f"is Redis {release or 'of unknown version'}; Redis 6 or newer is needed"):
        new_store(f"redis://127.0.0.1:{server.port}/0").open()
    server.close()
