"""KV slab: one session's keys and values, preallocated, written and moved in place."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What a model keeps per token: for each layer the shape (heads, width) of a key row and of a value row."""

    keys: tuple[tuple[int, int], ...]
    values: tuple[tuple[int, int], ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        width = sum(heads * width for heads, width in (*self.keys, *self.values))
        return width * torch.empty((), dtype=self.dtype).element_size()


class KVSlab:
    """Room for `capacity` tokens of one session.

    Rows [0, length) are committed. A forward writes its rows behind them; `commit` moves the kept ones together and the
    rest is simply overwritten by the next forward. Layers of one shape share one tensor [layers, heads, capacity, width],
    so that a commit costs one copy per shape and not one per layer.
    """

    def __init__(self, layout: KVLayout, capacity: int) -> None:
        self._layout = layout
        self.capacity = capacity
        self.length = 0
        self._groups: list[torch.Tensor] = []
        self.keys: list[torch.Tensor] = self._allocate(layout, layout.keys)
        self.values: list[torch.Tensor] = self._allocate(layout, layout.values)

    def _allocate(self, layout: KVLayout, shapes: tuple[tuple[int, int], ...]) -> list[torch.Tensor]:
        rows: list[torch.Tensor | None] = [None] * len(shapes)
        for shape in dict.fromkeys(shapes):
            layers = [index for index, other in enumerate(shapes) if other == shape]
            heads, width = shape
            group = torch.empty((len(layers), heads, self.capacity, width), dtype=layout.dtype, device=layout.device)
            self._groups.append(group)
            for index, layer in enumerate(layers):
                rows[layer] = group[index]
        return [row for row in rows if row is not None]

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self._groups)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put n new rows [heads, n, width] behind the committed ones; returns keys and values [heads, length + n, width]."""
        end = self.length + key.shape[1]
        keys, values = self.keys[layer], self.values[layer]
        keys[:, self.length : end] = key
        values[:, self.length : end] = value
        return keys[:, :end], values[:, :end]

    def commit(self, path: list[int]) -> None:
        """Keep the rows `path` of the last forward (ascending, counted from its first row), drop the rest."""
        if any(later <= earlier for earlier, later in pairwise(path)):
            raise ValueError("a path must ascend")
        start = self.length
        fixed = 0  # rows that stand where they belong already
        while fixed < len(path) and path[fixed] == fixed:
            fixed += 1
        if fixed < len(path):
            index = torch.from_numpy(np.asarray(path[fixed:], np.int64) + start)
            for group in self._groups:
                moved = group.index_select(2, index.to(group.device, non_blocking=True))
                group[:, :, start + fixed : start + len(path)] = moved
        self.length = start + len(path)

    def copy(self, capacity: int, rows: int) -> KVSlab:
        """A slab of its own with room for `capacity` tokens and the first `rows` committed rows of this one."""
        other = KVSlab(self._layout, capacity)
        other.load(self, rows)
        return other

    def load(self, other: KVSlab, rows: int) -> None:
        """Begin with the first `rows` committed rows of a slab of the same layout, in place of what is here."""
        if other is not self:
            for mine, theirs in zip(self._groups, other._groups, strict=True):
                mine[:, :, :rows] = theirs[:, :, :rows]
        self.length = rows

    def crop(self, length: int) -> None:
        """Forget the rows from `length` on."""
        self.length = min(self.length, length)
