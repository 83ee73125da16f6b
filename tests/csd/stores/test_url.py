"""URLs: what they name, and that none is repeated with its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from csd.stores.sqlite import SqliteStore
from csd.stores.url import open_store
from tests.csd.stores.support import store_at


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///a/b.db", "a/b.db"),
        ("sqlite:////a/b.db", "/a/b.db"),
        ("sqlite:a/b.db", "a/b.db"),
        ("sqlite:/a/b.db", "/a/b.db"),
        ("sqlite:~/b.db", str(Path.home() / "b.db")),
    ],
)
def test_sqlite_paths(url: str, path: str) -> None:
    store = store_at(url)
    assert isinstance(store, SqliteStore) and store.path == Path(path)


@pytest.mark.parametrize("url", ["none", "memory:", "memory://"])
def test_no_store(url: str) -> None:
    assert open_store(url, "f") is None


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://:s3cret@example.org:7000/3", "redis://example.org:7000/3"),
        ("rediss://me:s3cret@[::1]?ssl_cert_reqs=required", "rediss://[::1]:6379/0"),
        ("redis://localhost?password=s3cret&db=2", "redis://localhost:6379/2"),
        ("unix:///run/redis.sock?password=s3cret&db=1", "unix:///run/redis.sock?db=1"),
    ],
)
def test_names_hold_no_password(url: str, name: str) -> None:
    assert store_at(url).name == name


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://me:s3cret@host/x", "store must be one of: sqlite:PATH, redis://, rediss://, unix://, none"),
        ("s3cret", "store must be one of"),
        ("redis", "store must be one of"),
        ("", "store must be one of"),
        ("sqlite:", "path of a file"),
        ("sqlite::memory:", "write none"),
        ("sqlite://s3cret/b.db", "no host"),
        ("redis://:s3/cret@host:1/0", "percent-encode"),
        ("redis://s3cret/x@host:1/0", "percent-encode"),
        ("redis://:1/s3cret@host", "percent-encode"),
        ("redis://:s3#cret@host", "percent-encode"),
        ("redis://[s3cret", "percent-encode"),
        ("redis://host/s3cret", "percent-encode"),
        ("redis://host?db=s3cret", "db is a number"),
        ("redis://host?socket_timeout=900", "options can be"),
        ("redis://host?ssl_ca_certs=x", "options can be"),
        ("unix://", "path of a socket"),
    ],
)
def test_refused_without_being_repeated(url: str, message: str) -> None:
    with pytest.raises(ValueError, match="store") as caught:
        open_store(url, "f")
    assert message in str(caught.value) and "s3" not in str(caught.value)


@pytest.mark.parametrize("fingerprint", ["", "a{b", "a}b", "a\nb"])
def test_fingerprints_that_would_spoil_a_key(fingerprint: str) -> None:
    with pytest.raises(ValueError, match="fingerprint"):
        open_store("sqlite:x.db", fingerprint)


@pytest.mark.parametrize("limit", [{"ttl": 0}, {"max_entries": 0}])
def test_limits_are_positive(limit: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        open_store("sqlite:x.db", "f", **limit)
