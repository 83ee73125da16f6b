"""CSD in the engine: the correction memory of this pair of models, its store, and the acceptance rule of each request."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.engine.errors import InvalidRequest
from app.engine.request import RuleName, SpeculationParams
from csd.gate import CsdRule, Rule, StaticRule
from csd.memory import CorrectionMemory, Entry
from csd.stores.base import DEFAULT_TTL, ErrorKind, Store, add_once
from csd.stores.sync import StoreSync
from csd.stores.url import open_store

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class CsdConfig:
    """Settings of csd. allowed: requests may ask for it; where not, no memory is kept at all.

    store: see csd.stores.url. rule: both (the paper's), ocm or scg alone, static (lossy baseline). ttl: seconds after
    which Redis drops a table that is not written to.
    """

    allowed: bool = False
    lambda_: float = 6.0
    tau: float = 0.01
    rule: RuleName = "both"
    store: str = "none"
    ttl: int = DEFAULT_TTL
    max_entries: int = 200_000
    half_life: float | None = None


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The correction memory and its store, as an operator sees them.

    state: ok, degraded (requests are served, but the store is neither read nor written) or off. errors: failed exchanges by
    kind. last_error contains no secret.
    """

    state: Literal["ok", "degraded", "off"] = "off"
    name: str = "none"
    entries: int = 0
    recorded: int = 0  # divergences counted since the start
    acknowledged: int = 0  # increments that the store confirmed
    errors: dict[ErrorKind, int] = field(default_factory=dict)
    last_error: str | None = None


class Corrections:
    """The memory and its store. The worker reads and records; a thread of the store exchanges both."""

    def __init__(self, config: CsdConfig, table: str) -> None:
        """table: the fingerprint. Raises ValueError for an unusable store setting."""
        self.config = config
        self.fingerprint = table
        self.memory = CorrectionMemory(config.max_entries, config.half_life)
        self._store: Store | None = open_store(config.store, table, ttl=config.ttl, max_entries=config.max_entries)
        self._sync = StoreSync(self.memory, self._store)
        self._merged: set[str] = set()  # batches added without a store, which would remember them

    def start(self) -> None:
        self._sync.start()

    def close(self) -> None:
        """Write what was learnt to the store, in at most FLUSH_SECONDS."""
        self._sync.close(FLUSH_SECONDS)

    def flush(self, timeout: float) -> bool:
        return self._sync.flush(timeout)

    @property
    def status(self) -> StoreStatus:
        sync = self._sync
        name = "none" if self._store is None else self._store.name
        memory = self.memory
        return StoreStatus(
            sync.state, name, len(memory), memory.recorded, sync.acknowledged, dict(sync.errors), sync.last_error
        )

    def add(self, entries: Sequence[Entry], batch: str | None = None, timeout: float = 60.0) -> bool:
        """Add counts from elsewhere to store and memory; False where this batch was added before. Raises StoreError.

        batch: a name of these counts; under one name they are added only once.
        """
        name = batch or uuid.uuid4().hex
        if self._store is not None:
            new = self._sync.call(lambda store: add_once(store, entries, name), timeout)
            self._sync.flush(timeout)  # the memory takes over the table of the store, too
            return new
        if name in self._merged:
            return False
        self.memory.merge(entries)
        self._merged.add(name)
        return True

    def clear(self) -> None:
        """Forget everything, in the store as well. Raises StoreError."""
        self._sync.clear()

    def rule(self, asked: SpeculationParams) -> Rule:
        """The rule of one request. Raises InvalidRequest for impossible values."""
        return rule_of(self.config, asked)


def add_to_store(config: CsdConfig, table: str, batches: Iterable[tuple[str, Sequence[Entry]]]) -> int:
    """Add batches (name, counts) to the store of `config` without serving from it; returns how many were new.

    Raises StoreError.
    """
    corrections = Corrections(config, table)
    corrections.start()
    try:
        return sum(corrections.add(entries, name) for name, entries in batches)
    finally:
        corrections.close()


def rule_of(config: CsdConfig, asked: SpeculationParams) -> Rule:
    """What a request asks for, and the server's settings for what it leaves out. Raises InvalidRequest."""
    name = asked.rule or config.rule
    tau = config.tau if asked.tau is None else asked.tau
    try:
        if name == "static":
            return StaticRule()
        return CsdRule(
            config.lambda_ if asked.lambda_ is None else asked.lambda_,
            tau,
            use_memory=name != "scg",
            use_gate=name != "ocm",
        )
    except ValueError as error:
        field_name = "tau" if "tau" in str(error) else "lambda"
        raise InvalidRequest(f"{error}.", f"speculative.{field_name}") from error
