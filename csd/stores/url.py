"""Store URLs: opens the store that a setting names."""

from __future__ import annotations

from pathlib import Path

from csd.memory import DEFAULT_MAX_ENTRIES
from csd.stores.base import DEFAULT_TTL, Store
from csd.stores.redis import RedisStore
from csd.stores.sqlite import SqliteStore

ALLOWED = "sqlite:PATH, redis://, rediss://, unix://, none"


def open_store(url: str, fingerprint: str, *, ttl: int = DEFAULT_TTL, max_entries: int = DEFAULT_MAX_ENTRIES) -> Store | None:
    """The store for a URL, not connected yet; None for `none` and `memory:`. Raises ValueError for an invalid URL.

    sqlite:PATH or, as SQLAlchemy writes it, sqlite:///relative/path and sqlite:////absolute/path;
    redis://[user:password@]host[:port][/db], rediss:// the same over TLS, unix:///path/to/socket[?db=0&password=...].
    ttl: seconds after the last write until Redis deletes the table. max_entries: limit; the least frequent pairs go first.
    """
    if not fingerprint or set(fingerprint) & set("{}") or not fingerprint.isprintable():
        raise ValueError("fingerprint must be printable text without braces")
    if ttl < 1 or max_entries < 1:
        raise ValueError("ttl and max_entries must be at least 1")
    scheme, colon, rest = url.partition(":")
    if url == "none" or (scheme == "memory" and colon and not rest.strip("/")):
        return None
    if colon and scheme == "sqlite":
        return SqliteStore(_sqlite_path(rest), fingerprint, max_entries=max_entries)
    if colon and scheme in ("redis", "rediss", "unix"):
        return RedisStore(url, fingerprint, ttl=ttl, max_entries=max_entries)
    raise ValueError(f"store must be one of: {ALLOWED}")


def _sqlite_path(rest: str) -> Path:
    if rest.startswith("//"):
        if not rest.startswith("///"):
            raise ValueError("store: a SQLite file has no host; write sqlite:///relative/path or sqlite:////absolute/path")
        rest = rest[3:]
    if not rest or rest == ":memory:" or "\0" in rest:
        raise ValueError("store: sqlite: needs the path of a file; for a table in memory only write none")
    return Path(rest).expanduser()
