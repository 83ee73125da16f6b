"""Writes a tiny Llama, Qwen2 or Phi-3 and its tokenizer as a GGUF file, the way llama.cpp's converter does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_RENAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
    "model.layers.": "blk.",
}


def write_gguf(
    path: Path,
    model: Any,
    tokenizer: Any,
    *,
    pre: str = "gpt-2",
    extra: dict[str, np.ndarray] | None = None,
    say: Callable[[gguf.GGUFWriter], Any] = lambda writer: None,
) -> None:
    """extra: more tensors. say: adds more keys."""
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    cut = config.rope_parameters.get("partial_rotary_factor", 1.0)
    writer.add_rope_dimension_count(int(cut * (config.hidden_size // config.num_attention_heads)))
    writer.add_vocab_size(config.vocab_size)
    say(writer)
    _add_tokenizer(writer, tokenizer, pre)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        writer.add_tensor(_renamed(name), _permuted(name, tensor.float().numpy(), config))
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Any, pre: str) -> None:
    backend = tokenizer.backend_tokenizer
    added = backend.get_added_tokens_decoder()
    size = backend.get_vocab_size(with_added_tokens=True)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([backend.id_to_token(i) for i in range(size)])
    writer.add_token_types([1 if i not in added else 3 if added[i].special else 4 for i in range(size)])
    writer.add_token_merges([" ".join(merge) for merge in json.loads(backend.to_str())["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(True)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _renamed(name: str) -> str:
    for ours, theirs in _RENAMES.items():
        name = name.replace(ours, theirs)
    return name


def _permuted(name: str, array: np.ndarray, config: Any) -> np.ndarray:
    """llama.cpp keeps the two halves of each rotary pair side by side in Llama's query and key weights."""
    if config.model_type != "llama" or not ("q_proj" in name or "k_proj" in name):
        return array
    heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
    return np.ascontiguousarray(
        array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
    )
