"""Runs the peers of transformers: `generate` plain, with prompt lookup, and assisted by a draft model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from app.engine.models.loading import LoadedModel
from bench.errors import BenchError
from bench.modes import Mode
from bench.result import Measurement

LOOKUP_NGRAM, LOOKUP_TOKENS = 3, 10


class PeerRunner:
    """Answers prompts by transformers' `generate` on the engine's own weights, under the attention the model came with.

    The engine must be idle meanwhile. A model's generation defaults (penalties, filters) are dropped: every mode decodes alike.
    """

    def __init__(
        self,
        target: LoadedModel,
        attention: Sequence[str],
        draft: LoadedModel | None = None,
        *,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> None:
        """attention: the attention implementations of target and draft before an engine took the models."""
        self._model = target.model
        self._attention = tuple(attention)
        self._draft = None if draft is None else draft.model
        self._temperature = temperature
        self._seed = seed
        self._eos = sorted(target.eos_ids)
        for model in (self._model, self._draft):
            if model is not None:
                model.generation_config = GenerationConfig()

    def run(self, mode: Mode, prompt: Sequence[int], max_tokens: int) -> Measurement:
        """One answer. steps counts all forward passes of the target: the first one reads the prompt and may carry a draft."""
        config = self._config(mode, max_tokens)
        more = {"assistant_model": self._draft} if mode.peer == "hf-assisted" else {}
        ids = torch.tensor([list(prompt)], device=self._model.device)
        passes: list[float] = []
        with self._own_attention(), torch.inference_mode():
            hook = self._model.register_forward_hook(lambda *_: passes.append(time.perf_counter()))
            try:
                torch.manual_seed(self._seed)
                started = time.perf_counter()
                output = self._model.generate(
                    input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config, **more
                )
                tokens = output[0, ids.shape[1] :].tolist()
                ended = time.perf_counter()
            finally:
                hook.remove()
        if not passes:
            raise BenchError(f"mode {mode.name}: generate ran no forward pass")
        return Measurement(
            tokens=tuple(tokens),
            seconds=ended - started,
            decode_seconds=ended - passes[0],
            steps=len(passes),
            step_tokens=len(tokens),
        )

    def _config(self, mode: Mode, max_tokens: int) -> GenerationConfig:
        lookup: dict[str, Any] = {}
        if mode.peer == "hf-pld":
            lookup = {"prompt_lookup_num_tokens": LOOKUP_TOKENS, "max_matching_ngram_size": LOOKUP_NGRAM}
        sampling: dict[str, Any] = {"do_sample": False}
        if self._temperature > 0:
            sampling = {"do_sample": True, "temperature": self._temperature, "top_k": 0, "top_p": 1.0}
        return GenerationConfig(
            max_new_tokens=max_tokens,
            eos_token_id=self._eos or None,
            pad_token_id=self._eos[0] if self._eos else 0,
            use_cache=True,
            **sampling,
            **lookup,
        )

    @contextmanager
    def _own_attention(self) -> Iterator[None]:
        models = [model for model in (self._model, self._draft) if model is not None]
        engines = [model.config._attn_implementation for model in models]
        for model, attention in zip(models, self._attention, strict=True):
            model.set_attn_implementation(attention)
        try:
            yield
        finally:
            for model, attention in zip(models, engines, strict=True):
                model.set_attn_implementation(attention)
