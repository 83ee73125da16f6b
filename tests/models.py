"""Tiny random models of every class the engine must run, made in the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

VOCABULARY = 97
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HEAD = {"head_dim": 8}


def _longrope() -> dict[str, Any]:
    half = SMALL["hidden_size"] // SMALL["num_attention_heads"] // 2
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * half,
        "long_factor": [2.0 + i for i in range(half)],
        "original_max_position_embeddings": 32,
        "partial_rotary_factor": 1.0,
    }


def _qwen3_next() -> Any:
    config = hf.Qwen3NextConfig(
        **{**SMALL, "num_hidden_layers": 4},
        **HEAD,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    return hf.Qwen3NextForCausalLM(config)


MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL)),
    "llama-tied": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, tie_word_embeddings=True)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SMALL)),
    "qwen2-window": lambda: hf.Qwen2ForCausalLM(
        hf.Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=16, max_window_layers=1)
    ),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SMALL, **HEAD)),
    "mistral-window": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SMALL, **HEAD, sliding_window=16)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**SMALL)),
    "phi3-longrope": lambda: hf.Phi3ForCausalLM(
        hf.Phi3Config(**SMALL, original_max_position_embeddings=32, rope_parameters=_longrope())
    ),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**SMALL, **HEAD, sliding_window=16)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**SMALL, **HEAD, sliding_window=16)),
    "gpt-oss": lambda: hf.GptOssForCausalLM(
        hf.GptOssConfig(**SMALL, **HEAD, sliding_window=16, num_local_experts=4, num_experts_per_tok=2)
    ),
}
HYBRIDS: dict[str, Callable[[], Any]] = {"qwen3-next": _qwen3_next}


def build(name: str, seed: int = 0) -> Any:
    """A float32 model in eval mode; weights are spread so that its greedy text is varied."""
    torch.manual_seed(seed)
    model = (MODELS | HYBRIDS)[name]().float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0 if name != "qwen3-next" else 1.0)
    return model
