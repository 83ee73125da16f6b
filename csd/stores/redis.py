"""The shared store: Redis 6 or newer, or Valkey, for replicas that learn from each other."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from csd.fingerprint import SCHEMA
from csd.memory import MAX_COUNT, MAX_ID, Increment
from csd.stores.base import CHUNK, KEPT_BATCHES, Batch, Snapshot, StoreError, StoreMisfit
from csd.stores.redis_errors import TIMEOUT, misshaped, translated

T = TypeVar("T")

STAGED = 600  # seconds until Redis deletes what an interrupted import left
OLDEST = 6  # major version
OPTIONS = {"db", "username", "password", "client_name"}
TLS_OPTIONS = {"ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"}

# Redis does not undo the writes of a failing script, so whatever can fail is checked first: types here, memory by the first
# write. KEYS: pairs, version, batches.
CHECK = """
local function misfit(key, wanted)
  local found = redis.call('TYPE', key).ok
  return found ~= 'none' and found ~= wanted
end
local version = false
if not misfit(KEYS[2], 'string') then version = redis.call('GET', KEYS[2]) end
if misfit(KEYS[1], 'zset') or misfit(KEYS[2], 'string') or misfit(KEYS[3], 'zset')
    or (version and not string.match(version, '^%d+$')) then
  return redis.error_reply('WRONGTYPE a key of the table holds something else')
end
version = tonumber(version or 0)
local function bump()
  if version == 0 then
    local now = redis.call('TIME')
    version = now[1] * 1000000 + now[2]
  else
    version = version + 1
  end
  redis.call('SET', KEYS[2], string.format('%.0f', version))
end
"""
# ARGV: batch id, seconds to live, entry limit, batches kept, then draft:target and count alternately.
APPLY = f"""{CHECK}
if redis.call('ZSCORE', KEYS[3], ARGV[1]) then return version end
bump()
redis.call('ZADD', KEYS[3], string.format('%.0f', version), ARGV[1])
for i = 5, #ARGV, 2 do redis.call('ZINCRBY', KEYS[1], ARGV[i + 1], ARGV[i]) end
local most = tonumber(ARGV[3])
local held = redis.call('ZCARD', KEYS[1])
if held > most then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, held - most + math.floor(most / 10) - 1) end
redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -1 - ARGV[4])
for i = 1, 3 do redis.call('EXPIRE', KEYS[i], ARGV[2]) end
return version
"""
# ARGV: seconds to live.
CLEAR = f"""{CHECK}
redis.call('DEL', KEYS[1])
bump()
for i = 2, 3 do redis.call('EXPIRE', KEYS[i], ARGV[1]) end
return version
"""

# KEYS[4]: the new table; the key does not exist for an empty one. ARGV: seconds to live, entry limit. A full server refuses the
# first write, so the script fails before it has changed anything.
REPLACE = f"""{CHECK}
bump()
if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('RENAME', KEYS[4], KEYS[1]) else redis.call('DEL', KEYS[1]) end
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[2])
for i = 1, 3 do redis.call('EXPIRE', KEYS[i], ARGV[1]) end
return version
"""


class RedisStore:
    """Three keys with a time to live. Their hash tag puts them into one cluster slot:

    racer:ocm:<schema>:{<fingerprint>}           sorted set, "draft:target" by count, to remove the least frequent first
    racer:ocm:<schema>:{<fingerprint>}:version   integer
    racer:ocm:<schema>:{<fingerprint>}:batches   sorted set, batch id by the version it led to

    Acknowledged batches are as durable as the server: with an append-only file they survive a crash of it.
    """

    def __init__(self, url: str, fingerprint: str, *, ttl: int, max_entries: int) -> None:
        """Raises ValueError, which says what is wrong with the URL without repeating it."""
        self.name = _checked(url)
        self.ttl = ttl
        self.max_entries = max_entries
        pairs = f"racer:ocm:{SCHEMA}:{{{fingerprint}}}"
        self.keys = (pairs, f"{pairs}:version", f"{pairs}:batches")
        try:
            self._client: Redis = Redis.from_url(
                url,
                protocol=2,
                decode_responses=True,
                encoding_errors="replace",
                socket_timeout=TIMEOUT,
                socket_connect_timeout=TIMEOUT,
                # Retry once over a new connection, in case the server closed an idle one; a repeated batch counts once.
                retry=Retry(NoBackoff(), 1, (RedisConnectionError,)),
            )
        except (ValueError, TypeError):
            raise ValueError("store: the URL cannot be read; percent-encode special characters in the password") from None

    async def open(self) -> None:
        server = await self._call(self._client.info("server"))
        release = str(server.get("redis_version", ""))
        major = release.partition(".")[0]
        if not major.isdecimal() or int(major) < OLDEST:
            raise StoreMisfit(
                f"{self.name} is Redis {release or 'of unknown version'}; Redis {OLDEST} or newer is needed", "version"
            )
        pipeline = self._client.pipeline(transaction=False)
        for key in self.keys:
            pipeline.type(key)
        for key, found, wanted in zip(self.keys, await self._call(pipeline.execute()), ("zset", "string", "zset"), strict=True):
            if found not in ("none", wanted):
                raise misshaped(self.name, key)

    async def apply(self, batch: Batch) -> int:
        arguments: list[str | int] = [batch.id, self.ttl, self.max_entries, KEPT_BATCHES]
        for draft, target, count in batch.increments:
            arguments += (f"{draft}:{target}", repr(float(count)))
        return int(await self._call(self._eval(APPLY, arguments)))

    async def version(self) -> int:
        return self._number(await self._call(self._client.get(self.keys[1])))

    async def load(self) -> Snapshot:
        for _ in range(3):
            snapshot, moved = await self._read()
            if not moved:
                break
        # If others keep writing, the last snapshot has the version from before their writes, so the next refresh reads them.
        return snapshot

    async def replace(self, entries: Sequence[Increment]) -> None:
        """Write the new table under a temporary key that expires soon, then swap it in at once."""
        staged = f"{self.keys[0]}:import:{uuid.uuid4().hex}"
        try:
            for start in range(0, len(entries), CHUNK):
                pipeline = self._client.pipeline(transaction=False)
                pipeline.zadd(staged, {f"{draft}:{target}": count for draft, target, count in entries[start : start + CHUNK]})
                pipeline.expire(staged, STAGED)
                await self._call(pipeline.execute())
            keys = (*self.keys, staged)
            await self._call(self._client.eval(REPLACE, len(keys), *keys, self.ttl, self.max_entries))
        except StoreError:
            with contextlib.suppress(RedisError, OSError):
                await self._client.delete(staged)
            raise

    async def clear(self) -> None:
        await self._call(self._eval(CLEAR, [self.ttl]))

    async def close(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            await self._client.aclose()

    async def _read(self) -> tuple[Snapshot, bool]:
        """Read the table in chunks; returns it, and whether its version changed meanwhile."""
        counts: dict[tuple[int, int], float] = {}
        first: int | None = None
        moved = False
        for start in range(0, self.max_entries, CHUNK):
            stop = min(start + CHUNK, self.max_entries) - 1
            pipeline = self._client.pipeline(transaction=False)  # inside MULTI a full server refuses even reads
            pipeline.get(self.keys[1])
            pipeline.zrevrange(self.keys[0], start, stop, withscores=True)
            pipeline.get(self.keys[1])
            before, rows, after = await self._call(pipeline.execute())
            first = self._number(before) if first is None else first
            moved = moved or not self._number(before) == self._number(after) == first
            for member, score in rows:
                draft, target, count = self._entry(member, score)
                if draft != target:
                    counts.setdefault((draft, target), count)
            if len(rows) <= stop - start:
                break
        return Snapshot(first or 0, [(*pair, count) for pair, count in counts.items()]), moved

    def _entry(self, member: str, count: float) -> Increment:
        match = re.fullmatch(r"(\d{1,10}):(\d{1,10})", member, re.ASCII)
        if match is None or not count > 0 or max(int(match[1]), int(match[2])) > MAX_ID:
            raise misshaped(self.name, self.keys[0])
        return int(match[1]), int(match[2]), min(count, MAX_COUNT)

    def _number(self, value: Any) -> int:
        if value is None:
            return 0
        if not str(value).isdecimal():
            raise misshaped(self.name, self.keys[1])
        return int(value)

    def _eval(self, script: str, arguments: list[Any]) -> Awaitable[Any]:
        return self._client.eval(script, len(self.keys), *self.keys, *arguments)

    async def _call(self, reply: Awaitable[T]) -> T:
        try:
            return await reply
        except (RedisError, OSError) as error:  # the asyncio client lets some OSErrors through, such as time-outs
            raise translated(error, self.name, self.keys[0]) from error


def _checked(url: str) -> str:
    """The URL without its secrets. Raises ValueError where redis-py would misread or ignore a part of it."""
    unreadable = ValueError("store: the URL cannot be read; percent-encode special characters in the password")
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
    except ValueError:
        raise unreadable from None
    if parts.fragment or (parts.scheme != "unix" and not re.fullmatch(r"(/\d*)?", parts.path, re.ASCII)):
        raise unreadable
    database = _options(parts).get("db", "0")
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("store: unix:// needs the path of a socket: unix:///run/redis.sock")
        return f"unix://{parts.path}?db={database}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or "localhost"
    return f"{parts.scheme}://{host}:{port}/{parts.path.strip('/') or database}"


def _options(parts: SplitResult) -> dict[str, str]:
    allowed = OPTIONS | TLS_OPTIONS if parts.scheme == "rediss" else OPTIONS
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if options.keys() - allowed or not options.get("db", "0").isdecimal():
        raise ValueError(f"store: the URL's options can be {', '.join(sorted(allowed))}; db is a number")
    return options
