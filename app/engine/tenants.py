"""The warm base layers of the copy-logit table: one per API key, bounded in number, the least recently used leaves."""

from __future__ import annotations

from collections import OrderedDict

from racer.copy_logits import CopyLogitTable
from racer.drafter import RacerConfig

MAX_TENANTS = 64


class Tenants:
    """Hands each tenant its own base table. Used by the worker thread alone."""

    def __init__(self, config: RacerConfig, *, enabled: bool) -> None:
        self._config = config
        self._enabled = enabled
        self._tables: OrderedDict[str, CopyLogitTable] = OrderedDict()

    def base(self, tenant: str) -> CopyLogitTable | None:
        """The tenant's table, or None where nothing is to outlive a session."""
        if not self._enabled:
            return None
        table = self._tables.pop(tenant, None)
        if table is None:
            table = CopyLogitTable(self._config.breadth, self._config.table_rows)
        self._tables[tenant] = table
        while len(self._tables) > MAX_TENANTS:
            self._tables.popitem(last=False)
        return table

    def clear(self) -> None:
        self._tables.clear()
