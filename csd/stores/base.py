"""The interface of stores for a correction memory, and the errors they raise."""

from __future__ import annotations

import hashlib
import math
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from csd.memory import MAX_ID, Increment

DEFAULT_TTL = 30 * 86400  # seconds
CHUNK = 5_000  # entries per call; a larger call could exceed the store's time-out
KEPT_BATCHES = 10_000  # batch ids remembered per fingerprint, to recognise a batch that is sent again

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
    """A store operation failed. The message says what to do and never contains a password. kind: a metric's label."""

    def __init__(self, message: str, kind: ErrorKind) -> None:
        super().__init__(message)
        self.kind = kind


class StoreUnavailable(StoreError):
    """A failure that may pass by itself. The operation may have taken effect; a batch can be sent again unchanged."""


class StoreMisfit(StoreError):
    """A failure that lasts until someone changes something: a password, a file, a key. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Increments applied together, exactly once. ValueError when one is not (id, another id, positive finite count)."""

    increments: tuple[Increment, ...]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        for draft, target, count in self.increments:
            if not (0 <= draft <= MAX_ID and 0 <= target <= MAX_ID and draft != target and 0 < count < math.inf):
                raise ValueError(f"an increment needs two different ids from 0 to {MAX_ID} and a positive, finite count")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one version. entries: (draft, target, count), most frequent first, each pair once.

    Older tables could hold counts of equal tokens, which have no use: a store leaves them out.
    """

    version: int
    entries: list[Increment]


class Store(Protocol):
    """The table of one fingerprint. Methods raise StoreError and nothing else, and finish within bounded time.

    The version is 0 while the store has no table for the fingerprint. Each batch raises it by one. A new table (first use,
    flush, expiry) starts at the current time in microseconds, so that its versions differ from those of earlier tables.
    """

    name: str  # for messages; contains no secrets

    async def open(self) -> None:
        """Connect and check. The other methods connect by themselves where needed."""

    async def apply(self, batch: Batch) -> int:
        """Add the batch, whole or not at all, and return the version. A batch applied before changes nothing."""

    async def version(self) -> int: ...

    async def load(self) -> Snapshot: ...

    async def replace(self, entries: Sequence[Increment]) -> None:
        """Replace the whole table with these entries, each pair once; on failure the table is unchanged."""

    async def clear(self) -> None:
        """Empty the table. The ids of applied batches are kept."""

    async def close(self) -> None:
        """Close connections; never raises."""


def first_version() -> int:
    return time.time_ns() // 1_000


def batches_of(increments: Iterable[Increment], size: int = CHUNK) -> list[Batch]:
    """Split into batches small enough for a store to apply within its time-out."""
    rows = tuple(increments)
    return [Batch(rows[start : start + size]) for start in range(0, len(rows), size)]


async def add_once(store: Store, increments: Iterable[Increment], name: str) -> bool:
    """Add increments once under a name of the caller's choice; False if they were all added under this name before.

    Batch ids are made from the name and the batch's index, so an interrupted call can be repeated and continues where it ended.
    """
    digest = hashlib.sha256(name.encode()).hexdigest()[:26]
    before = after = await store.version()
    batches = batches_of(increments)
    for place, batch in enumerate(batches):
        after = await store.apply(Batch(batch.increments, f"{digest}{place:06x}"))
    return after != before or not batches
