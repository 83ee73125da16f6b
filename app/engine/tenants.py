"""The warm layers of copy-logit rows: one per API key, bounded in number, the least recently used leaves."""

from __future__ import annotations

from collections import OrderedDict

from racer.auto import WarmLayer
from racer.drafter import RacerConfig

MAX_TENANTS = 64


class Tenants:
    """Hands each tenant its own layer. Used by the worker thread alone."""

    def __init__(self, config: RacerConfig, *, enabled: bool) -> None:
        self._config = config
        self._enabled = enabled
        self._tables: OrderedDict[str, WarmLayer] = OrderedDict()

    def layer(self, tenant: str) -> WarmLayer | None:
        """The tenant's layer, or None where nothing is to outlive a session."""
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

    def clear(self) -> None:
        self._tables.clear()
