"""Tree attention over packed rows: every session attends to its own slab, every node to its own ancestors.

The function is registered with transformers' attention and mask interfaces under one name, so that no model is forked: the
model hands over the rotated queries, keys and values of all rows, and the keyword argument `segments` says whose they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from racer.tree import BoolArray, Int32Array

PACKED = "racer_packed"


class RowStore(Protocol):
    """Where one session's keys and values lie (see KVSlab)."""

    length: int

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...


@dataclass(slots=True)
class Segment:
    """Rows [start, stop) of a packed forward: one session's tree, or a chunk of its prompt.

    depth[i]: position of row i minus the slab's length. visible [n, n]: which rows of the segment row i sees (itself
    included); every committed row is seen too, as far as the layer's window reaches.
    """

    start: int
    stop: int
    slab: RowStore
    depth: Int32Array
    visible: BoolArray
    dtype: torch.dtype
    device: torch.device
    _biases: dict[tuple[int, int], torch.Tensor | None] = field(default_factory=dict)

    def bias(self, window: int, groups: int) -> torch.Tensor | None:
        """Additive mask [groups * n, length + n] for a sliding window of `window` tokens (0: none); None where all is seen.

        The queries of the `groups` heads that share a key head are folded into the rows, hence the repetition.
        """
        key = (window, groups)
        if key not in self._biases:
            self._biases[key] = self._build_bias(window, groups)
        return self._biases[key]

    def _build_bias(self, window: int, groups: int) -> torch.Tensor | None:
        length, n = self.slab.length, self.stop - self.start
        sees = np.ones((n, length + n), np.bool_)
        sees[:, length:] = self.visible
        if window:
            position = np.concatenate([np.arange(length, dtype=np.int64), length + self.depth.astype(np.int64)])
            sees &= position[None, :] > position[length:, None] - window
        if sees.all():
            return None
        mask = torch.from_numpy(sees).to(self.device, non_blocking=True)
        bias = torch.zeros(mask.shape, dtype=self.dtype, device=self.device).masked_fill_(~mask, float("-inf"))
        return bias.repeat(groups, 1) if groups > 1 else bias


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    segments: list[Segment],
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_unused: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, rows, width], key and value [1, kv heads, rows, width] -> [1, rows, heads, width of a value].

    softcap: Gemma 2's cap on the scores. s_aux [heads]: gpt-oss' attention sinks.
    """
    heads, rows, width = query.shape[1:]
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    scale = width**-0.5 if scaling is None else scaling
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    out = torch.empty((rows, heads, value.shape[3]), dtype=query.dtype, device=query.device)
    for segment in segments:
        rows_of = slice(segment.start, segment.stop)
        n = segment.stop - segment.start
        keys, values = segment.slab.write(layer, key[0, :, rows_of], value[0, :, rows_of])
        folded = query[0, :, rows_of].reshape(1, kv_heads, groups * n, width)
        bias = segment.bias(sliding_window or 0, groups)
        if softcap is None and s_aux is None:
            attended = F.scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=bias, scale=scale)
        else:
            attended = _scored_attention(folded, keys, values, bias, scale, softcap, s_aux, n)
        out[rows_of] = attended.reshape(heads, n, -1).transpose(0, 1)
    out[segments[-1].stop :] = 0.0  # rows that belong to no session
    return out[None], None


def _scored_attention(
    folded: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
    n: int,
) -> torch.Tensor:
    """Attention with its scores laid open, for models that cap them or add a sink to the softmax."""
    scores = torch.matmul(folded[0], keys.transpose(1, 2)).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias.float()
    if sinks is not None:
        kv_heads, rows, _ = scores.shape
        sink = sinks.float().view(kv_heads, rows // n, 1, 1).expand(-1, -1, n, 1).reshape(kv_heads, rows, 1)
        weights = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    return torch.matmul(weights.to(values.dtype), values)[None]


def _no_mask(*_: Any, **__: Any) -> None:
    """The segments carry their own masks, so the model builds none."""


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, _no_mask)
