"""What every store of a correction memory offers, and the errors it raises."""

from __future__ import annotations

import hashlib
import math
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from csd.fingerprint import SCHEMA

Increment = tuple[int, int, float]  # draft, target, count to add

MAX_ID = 2**31 - 1
MAX_COUNT = 2.0**53  # a store may hold more, but gives out no more
DEFAULT_TTL = 30 * 86400  # seconds
DEFAULT_MAX_ENTRIES = 200_000
KEPT_BATCHES = 10_000  # ids remembered per fingerprint; a batch is known again until so many others came after it

__all__ = ["SCHEMA", "Batch", "Increment", "Snapshot", "Store", "StoreError", "StoreMisfit", "StoreUnavailable"]


ErrorKind = Literal[
    "auth",
    "busy",
    "cluster",
    "connection",
    "corrupt",
    "database",
    "full",
    "internal",
    "loading",
    "off",
    "other",
    "permission",
    "readonly",
    "schema",
    "timeout",
    "type",
    "version",
]
ERROR_KINDS: tuple[ErrorKind, ...] = get_args(ErrorKind)


class StoreError(Exception):
    """A store did not do what was asked. The message says what to do and never holds a password.

    kind: fit for a metric's label.
    """

    def __init__(self, message: str, kind: ErrorKind) -> None:
        super().__init__(message)
        self.kind = kind


class StoreUnavailable(StoreError):
    """It may work again by itself. Whether the operation took effect is unknown; batches can be sent again unchanged."""


class StoreMisfit(StoreError):
    """Someone has to change something first: a password, a file, a key. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Increments that take effect together, once. ValueError when one is not (id, another id, positive finite
    count)."""

    increments: tuple[Increment, ...]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        for draft, target, count in self.increments:
            if not (0 <= draft <= MAX_ID and 0 <= target <= MAX_ID and draft != target and 0 < count < math.inf):
                raise ValueError(f"an increment needs two different ids from 0 to {MAX_ID} and a positive, finite count")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table as it stood at `version`. entries: (draft, target, count), most frequent first, each pair once.

    Older tables could hold counts of equal tokens, which nothing uses: a store leaves them out.
    """

    version: int
    entries: list[Increment]


class Store(Protocol):
    """One fingerprint's table. Every method raises StoreError and nothing else, and takes bounded time.

    The version is 0 while the store holds nothing under the fingerprint. It rises by one with each batch; a table that is
    made anew (first use, flush, expiry) starts at the time in microseconds, so that it never repeats an older one's version.
    """

    name: str  # for people; no secrets

    async def open(self) -> None:
        """Connect and check. The other methods do it themselves where it was not done."""

    async def apply(self, batch: Batch) -> int:
        """Add the batch, all of it or nothing, and return the version. A batch that is in already changes nothing."""

    async def version(self) -> int: ...

    async def load(self) -> Snapshot: ...

    async def replace(self, entries: Sequence[Increment]) -> None:
        """Put these entries, each pair once, in the place of the whole table, or leave it as it is."""

    async def clear(self) -> None:
        """Empty the table. Batches that were applied before stay known."""

    async def close(self) -> None:
        """Let go of connections; never raises."""


def first_version() -> int:
    return time.time_ns() // 1_000


def batches_of(increments: Iterable[Increment], size: int = 5_000) -> list[Batch]:
    """Cut into batches small enough for a store to merge within its time-out."""
    rows = tuple(increments)
    return [Batch(rows[start : start + size]) for start in range(0, len(rows), size)]


async def add_once(store: Store, increments: Iterable[Increment], name: str) -> bool:
    """Add increments under a name of the caller's choice; False where the store has taken all that bears it before.

    Each batch gets an id made of the name and its place. What was cut off in the middle goes on there when it is sent again.
    """
    digest = hashlib.sha256(name.encode()).hexdigest()[:26]
    before = after = await store.version()
    batches = batches_of(increments)
    for place, batch in enumerate(batches):
        after = await store.apply(Batch(batch.increments, f"{digest}{place:06x}"))
    return after != before or not batches
