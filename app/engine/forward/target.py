"""The target model: one packed forward over the rows of many sessions, and its fallback for models that cannot do that."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from app.engine.forward.attention import PACKED, Segment
from app.engine.forward.kv import KVLayout, KVSlab
from app.engine.forward.pulse import Pulse
from racer.tree import BoolArray, DraftTree, Int32Array, Int64Array

ROW_STEPS = ((32, 1), (64, 4))  # (most rows, padded to multiples of): see _padding
ROW_STEP = 16  # larger ones to multiples of this


class SessionCache(Protocol):
    """What a target keeps for one session."""

    capacity: int  # tokens that it has room for
    length: int  # committed tokens

    def commit(self, path: list[int]) -> None:
        """Keep these rows of the last forward, in order."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One session's part of a forward.

    tokens int64 [n]; depth int32 [n] (position minus committed length); visible bool [n, n]; logits_from: rows from here on
    get a row of logits.
    """

    cache: SessionCache
    tokens: Int64Array
    depth: Int32Array
    visible: BoolArray
    logits_from: int = 0

    @staticmethod
    def of_tree(cache: SessionCache, tree: DraftTree) -> Rows:
        return Rows(cache, tree.tokens, tree.depth, tree.ancestors())

    @staticmethod
    def of_text(cache: SessionCache, tokens: Sequence[int], logits_from: int = 0) -> Rows:
        n = len(tokens)
        return Rows(cache, np.asarray(tokens, np.int64), np.arange(n, dtype=np.int32), np.tri(n, dtype=np.bool_), logits_from)


class Target(Protocol):
    """Runs the model. `trees` says whether more than a chain of committed tokens can be verified at once."""

    trees: bool
    device: torch.device
    pulse: Pulse  # beats at the beginning and the end of each pass

    def open(self, capacity: int) -> SessionCache: ...

    def forward(self, batch: Sequence[Rows]) -> torch.Tensor:
        """Logits [rows asked for, vocabulary] in the model's dtype, sessions in order."""

    def computed(self, rows: int) -> int:
        """Rows that a forward of `rows` computes, padding included."""

    @property
    def bytes_per_token(self) -> int: ...


class PackedTarget:
    """Packs the rows of all sessions into one row of the model; each attends to its own slab."""

    trees = True

    def __init__(self, model: Any) -> None:
        self.model = model
        self.native_attention = model.config._attn_implementation
        self.device = model.device
        self.dtype = model.dtype
        model.set_attn_implementation(PACKED)
        self.layout = self._probe_layout()
        self.pulse = Pulse()

    @property
    def bytes_per_token(self) -> int:
        return self.layout.bytes_per_token

    def open(self, capacity: int) -> KVSlab:
        return KVSlab(self.layout, capacity)

    @torch.inference_mode()
    def forward(self, batch: Sequence[Rows]) -> torch.Tensor:
        self.pulse.beat()
        segments, wanted, start = [], [], 0
        for rows in batch:
            slab, n = rows.cache, len(rows.tokens)
            if not isinstance(slab, KVSlab) or slab.length + n > slab.capacity:
                raise ValueError(f"{n} rows do not fit the session's slab")
            segments.append(Segment(start, start + n, slab, rows.depth, rows.visible, self.dtype, self.device))
            wanted.append(np.arange(start + rows.logits_from, start + n))
            start += n
        padding = self._padding(start)
        nothing = np.zeros(padding, np.int64)
        tokens = torch.from_numpy(np.concatenate([*(rows.tokens for rows in batch), nothing]))
        depths = [rows.depth.astype(np.int64) + rows.cache.length for rows in batch]
        positions = torch.from_numpy(np.concatenate([*depths, nothing]))
        keep = np.concatenate(wanted)
        count = len(keep)
        keep = np.concatenate([keep, np.repeat(keep[-1:], self._padding(count))])  # the head is a product of its own
        limit: dict[str, Any] = {}
        if count < start or len(keep) < start + padding:
            limit["logits_to_keep"] = torch.from_numpy(keep).to(self.device)
        output = self.model(
            input_ids=tokens[None].to(self.device),
            position_ids=positions[None].to(self.device),
            use_cache=False,
            segments=segments,
            **limit,
        )
        logits: torch.Tensor = output.logits[0, :count]
        self.pulse.beat()
        return logits

    def computed(self, rows: int) -> int:
        """Rows that a forward of `rows` computes."""
        return rows + self._padding(rows)

    def _padding(self, rows: int) -> int:
        """Rows to add that belong to no session, so that not every number of them occurs.

        oneDNN builds kernels for each shape of a 16-bit product and keeps them: one to three megabytes for each number of rows.
        Small numbers, those of one session that decodes as a rule, are left as they are: a row costs most there.
        """
        if self.device.type != "cpu" or self.dtype not in (torch.bfloat16, torch.float16):
            return 0
        step = next((step for most, step in ROW_STEPS if rows <= most), ROW_STEP)
        return -rows % step

    def native_logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits [n, vocabulary] of an unbroken text by the model's own attention: what `forward` must agree with."""
        return self.native_batch([tokens])[0]

    @torch.inference_mode()
    def native_batch(self, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The same of several texts in one pass. What fills up the shorter ones stands behind them, where no token looks."""
        longest = max(map(len, texts))
        self.model.set_attn_implementation(self.native_attention)
        try:
            ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=self.device)
            logits: torch.Tensor = self.model(input_ids=ids, use_cache=False).logits
            return [rows[: len(text)] for rows, text in zip(logits, texts, strict=True)]
        finally:
            self.model.set_attn_implementation(PACKED)

    def restore(self) -> None:
        """Give the model its own attention back."""
        self.model.set_attn_implementation(self.native_attention)

    def _probe_layout(self) -> KVLayout:
        recorder = _Recorder()
        segment = Segment(
            0,
            1,
            recorder,
            np.zeros(1, np.int32),
            np.ones((1, 1), np.bool_),
            self.dtype,
            self.device,  # type: ignore[arg-type]
        )
        with torch.inference_mode():
            zero = torch.zeros((1, 1), dtype=torch.long, device=self.device)
            self.model(input_ids=zero, position_ids=zero, use_cache=False, segments=[segment])
        layers = sorted(recorder.shapes)
        if layers != list(range(len(layers))) or not layers:
            raise ValueError("not every layer attends")
        return KVLayout(
            tuple(recorder.shapes[layer][0] for layer in layers),
            tuple(recorder.shapes[layer][1] for layer in layers),
            self.dtype,
            self.device,
        )


class _Recorder:
    """Stands in for a slab to learn the shape of each layer's rows."""

    length = 0

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[tuple[int, int], tuple[int, int]]] = {}

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.shapes[layer] = ((key.shape[0], key.shape[2]), (value.shape[0], value.shape[2]))
        return key, value


class SequentialTarget:
    """Plain decoding through the model's own cache, one session after the other: for models whose state is no row of KV."""

    trees = False

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = model.device
        parameters = inspect.signature(model.forward).parameters
        self.pulse = Pulse()
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @property
    def bytes_per_token(self) -> int:
        config = self.model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 2 * int(config.num_hidden_layers) * int(heads) * int(width) * int(self.model.dtype.itemsize)

    def open(self, capacity: int) -> NativeCache:
        return NativeCache(capacity)

    def computed(self, rows: int) -> int:
        """Rows that a forward of `rows` computes."""
        return rows

    @torch.inference_mode()
    def forward(self, batch: Sequence[Rows]) -> torch.Tensor:
        parts = []
        for rows in batch:
            self.pulse.beat()
            cache, n = rows.cache, len(rows.tokens)
            if not isinstance(cache, NativeCache) or not np.array_equal(rows.visible, np.tri(n, dtype=np.bool_)):
                raise ValueError("this model decodes plainly: only a chain can be run")
            if cache.logits is not None and np.array_equal(cache.read, rows.tokens):
                parts.append(cache.logits)  # the step failed for another session and is repeated
                continue
            positions = torch.from_numpy(rows.depth.astype(np.int64) + cache.length)
            arguments = {self._cache_argument: cache.state, "use_cache": True, "logits_to_keep": n - rows.logits_from}
            output = self.model(
                input_ids=torch.from_numpy(rows.tokens)[None].to(self.model.device),
                position_ids=positions[None].to(self.model.device),
                **arguments,
            )
            cache.state = getattr(output, self._cache_argument)
            cache.read, cache.logits = rows.tokens, output.logits[0]
            parts.append(cache.logits)
        self.pulse.beat()
        return torch.cat(parts)


class NativeCache:
    """The model's own cache of one session; it cannot be rolled back.

    read, logits: the tokens of the last forward and what came of them, until they are committed: none is ever run twice.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.read: Int64Array = np.zeros(0, np.int64)
        self.logits: torch.Tensor | None = None
        self.state: Any = None

    def commit(self, path: list[int]) -> None:
        if path != list(range(len(self.read))):
            raise ValueError("a native cache keeps every row of a forward")
        self.length += len(self.read)
        self.read, self.logits = np.zeros(0, np.int64), None
