"""CSD in the engine: the correction memory of this pair of models, its store, and the rule a request walks by."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from app.engine.errors import InvalidRequest
from app.engine.interface import StoreStatus
from app.engine.loading import LoadedModel
from app.engine.request import RuleName, SpeculationParams
from csd.fingerprint import fingerprint
from csd.gate import CsdRule, Rule, StaticRule
from csd.memory import CorrectionMemory, Entry
from csd.stores.base import DEFAULT_TTL, Batch, Store, batches_of
from csd.stores.sync import StoreSync
from csd.stores.url import open_store

logger = logging.getLogger(__name__)

SAMPLED = 8  # values of each parameter that tell one model from another
FLUSH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class CsdConfig:
    """How the server rescues. allowed: requests may ask for it; where not, no memory is kept at all.

    store: see csd.stores.url. rule: both (the paper's), ocm or scg alone, static (lossy baseline). ttl: seconds until Redis
    forgets a table that nobody writes to.
    """

    allowed: bool = False
    lambda_: float = 6.0
    tau: float = 0.01
    rule: RuleName = "both"
    min_share: float = 0.0
    store: str = "none"
    ttl: int = DEFAULT_TTL
    max_entries: int = 200_000
    half_life: float | None = None


class Corrections:
    """The memory and its store. The worker reads and records; the store's thread does the rest."""

    def __init__(self, config: CsdConfig, table: str) -> None:
        """table: the fingerprint. Raises ValueError for a store that cannot be."""
        self.config = config
        self.fingerprint = table
        self.memory = CorrectionMemory(config.max_entries, config.half_life)
        self._store: Store | None = open_store(config.store, table, ttl=config.ttl, max_entries=2 * config.max_entries)
        self._sync = StoreSync(self.memory, self._store)

    def start(self) -> None:
        self._sync.start()

    def close(self) -> None:
        """Give what was learnt to the store, within a bound."""
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
        """Add counts from elsewhere to store and memory; False where the store had taken this batch before. Raises StoreError.

        batch: an id of these counts (at most 26 characters are used); with the same id they are added to the store once.
        """
        if self._store is not None:
            batches = batches_of(entries)
            if batch is not None:
                batches = [Batch(part.increments, f"{batch[:26]}{index:06x}") for index, part in enumerate(batches)]

            async def send(store: Store) -> bool:
                before = after = await store.version()
                for part in batches:
                    after = await store.apply(part)
                return after != before

            new = self._sync.call(send, timeout)
            self._sync.flush(timeout)  # and with it the memory takes the store's table over
            return new or not batches
        self.memory.merge(entries)
        return True

    def clear(self) -> None:
        """Forget everything, in the store as well. Raises StoreError."""
        self._sync.clear()

    def rule(self, asked: SpeculationParams) -> Rule:
        """The rule of one request. Raises InvalidRequest for values that cannot be."""
        return rule_of(self.config, asked)


def add_to_store(url: str, table: str, entries: Sequence[Entry], batch: str) -> bool:
    """Add counts to a store without serving from it; False where it had taken this batch before. Raises StoreError."""
    corrections = Corrections(CsdConfig(allowed=True, store=url), table)
    corrections.start()
    try:
        return corrections.add(entries, batch)
    finally:
        corrections.close()


def rule_of(config: CsdConfig, asked: SpeculationParams) -> Rule:
    """What a request asks for, the server's settings where it is silent. Raises InvalidRequest."""
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
            min_share=config.min_share,
        )
    except ValueError as error:
        field_name = "tau" if "tau" in str(error) else "lambda"
        raise InvalidRequest(f"{error}.", f"speculative.{field_name}") from error


def table_fingerprint(target: LoadedModel, draft: LoadedModel | None) -> str:
    """The fingerprint of the table for this target and draft source; RACER's own drafts are one source of their own."""
    source = "racer" if draft is None else model_identity(draft)
    return fingerprint(model_identity(target), source, target.codec.tokenizer.get_vocab())


def model_identity(loaded: LoadedModel) -> str:
    """Tells one set of weights from another: class, shapes and the first values of each parameter, rounded to bfloat16 so that
    the dtype it was loaded in makes no difference."""
    content = hashlib.sha256(type(loaded.model).__name__.encode())
    for parameter in loaded.model.parameters():
        values = parameter.detach().flatten()[:SAMPLED].to(torch.bfloat16).float().tolist()
        content.update(repr((tuple(parameter.shape), values)).encode())
    return content.hexdigest()[:32]
