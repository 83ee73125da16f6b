"""The drafter of each generation, and what drafters share: estimates, prior rows, and warm rows by API key."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from app.engine.generation import Generation
from racer.auto import Shared, WarmLayer
from racer.drafter import Drafter, NullDrafter, RacerConfig
from racer.factory import new_drafter

MAX_TENANTS = 64


class Drafters:
    """Makes drafters. Used by the worker thread alone.

    shared, shared_csd: what all drafters learn, for exact verification and for csd: csd accepts more of the same candidates.
    """

    def __init__(self, config: RacerConfig, max_context: int, shared: Shared, shared_csd: Shared, *, warm: bool) -> None:
        """max_context: the context where config names none. warm: keep copy-logit rows from session to session."""
        self.shared = shared
        self.shared_csd = shared_csd
        self.tenants = Tenants(config, enabled=warm)
        self._config = replace(config, context=config.context or max_context)

    def new(self, generation: Generation) -> Drafter:
        """A drafter for a generation that starts."""
        speculation = generation.request.speculation
        if speculation.drafter in ("none", "draft_model"):
            return NullDrafter()
        shared = self.shared if generation.csd_rule is None else self.shared_csd
        layer = self.tenants.layer(generation.request.tenant)
        return new_drafter(speculation.policy or self._config.policy, self._config, layer, shared)


class Tenants:
    """The warm layers of copy-logit rows: one per API key, at most MAX_TENANTS; the least recently used is dropped."""

    def __init__(self, config: RacerConfig, *, enabled: bool) -> None:
        self._config = config
        self._enabled = enabled
        self._tables: OrderedDict[str, WarmLayer] = OrderedDict()

    def layer(self, tenant: str) -> WarmLayer | None:
        """The tenant's layer; None where rows are not kept from session to session."""
        if not self._enabled:
            return None
        table = self._tables.pop(tenant, None)
        if table is None:
            table = WarmLayer(self._config.breadth, self._config.table_rows)
        self._tables[tenant] = table
        while len(self._tables) > MAX_TENANTS:
            self._tables.popitem(last=False)
        return table

    @property
    def rows(self) -> int:
        """Copy-logit rows of all layers; may be read from any thread."""
        return sum(len(layer.rows) + len(layer.pairs) for layer in tuple(self._tables.values()))
