"""Redis failures as store errors: those that may pass by themselves, and those that someone has to fix."""

from __future__ import annotations

import re

from redis.exceptions import AuthenticationError, AuthorizationError, RedisError, ResponseError
from redis.exceptions import AuthenticationWrongNumberOfArgsError as WrongNumberOfArguments
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from csd.stores.base import ErrorKind, StoreError, StoreMisfit, StoreUnavailable

TIMEOUT = 0.5  # seconds, for connecting and for each reply

# Error codes of the server's replies. When a script fails, Redis 6 has them only inside the text.
PASSING: dict[str, tuple[ErrorKind, str]] = {
    "OOM": ("full", "is full; raise maxmemory or choose an eviction policy"),
    "MISCONF": ("full", "cannot write to its disk and refuses changes; look into its log"),
    "READONLY": ("readonly", "is a replica that takes no writes; name the primary"),
    "NOREPLICAS": ("readonly", "lacks replicas and refuses changes"),
    "MASTERDOWN": ("loading", "is a replica without its primary"),
    "LOADING": ("loading", "is still loading its data"),
    "CLUSTERDOWN": ("loading", "is part of a cluster that is down"),
    "TRYAGAIN": ("loading", "is part of a cluster that moves its keys"),
    "BUSY": ("busy", "is busy with a long script"),
    "UNKILLABLE": ("busy", "is busy with a long script"),
}
LASTING: dict[str, tuple[ErrorKind, str]] = {
    "MOVED": ("cluster", "is one node of a cluster, and not the one that holds the table; name a stand-alone server"),
    "ASK": ("cluster", "is one node of a cluster, and not the one that holds the table; name a stand-alone server"),
    "NOPERM": (
        "auth",
        "does not let this user do it; grant INFO, EVAL, TYPE, GET, SET and the sorted-set commands on racer:ocm:*",
    ),
}
CODES = {  # redis-py removes the code from the text of these errors
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "BusyLoadingError": "LOADING",
    "MasterDownError": "MASTERDOWN",
    "ClusterDownError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "NoPermissionError": "NOPERM",
}


def translated(error: RedisError | OSError, name: str, key: str) -> StoreError:
    """The matching store error. Its text is fixed, since replies and URLs may contain secrets."""
    text = str(error)
    words = {*re.findall(r"\b[A-Z]+\b", text), CODES.get(type(error).__name__)}
    if isinstance(error, AuthenticationError | AuthorizationError | WrongNumberOfArguments) or words & {"NOAUTH", "WRONGPASS"}:
        return StoreMisfit(f"{name} refuses the user or password; correct them in the store's URL", "auth")
    if "WRONGTYPE" in words:
        return misshaped(name, key)
    if "without any password configured" in text:
        return StoreMisfit(f"{name} has no password set; leave it out of the store's URL", "auth")
    for code, (kind, message) in LASTING.items():
        if code in words:
            return StoreMisfit(f"{name} {message}", kind)
    for code, (kind, message) in PASSING.items():
        if code in words:
            return StoreUnavailable(f"{name} {message}", kind)
    if isinstance(error, RedisTimeoutError | TimeoutError):
        return StoreUnavailable(f"{name} does not answer within {TIMEOUT} s; see whether it runs and is reachable", "timeout")
    if isinstance(error, RedisConnectionError | OSError):
        return StoreUnavailable(f"{name} cannot be reached; see whether it runs and the address is right", "connection")
    if isinstance(error, ResponseError) and "DB index" in text:
        return StoreMisfit(f"{name} has no such database; correct the number in the store's URL", "database")
    return StoreUnavailable(f"{name} failed: {type(error).__name__}", "other")


def misshaped(name: str, key: str) -> StoreMisfit:
    return StoreMisfit(
        f"the key {key} of {name} holds something else than a table of this program; rename or delete it, or use another db",
        "type",
    )
