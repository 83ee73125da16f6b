"""GGUF files that scale their rotary embedding give what the model they were made of gives, in its context and beyond it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM

from app.engine.engine import Engine, EngineConfig
from app.engine.errors import ModelLoadError
from app.engine.models.loading import load_model
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from tests.engine.gguf_files import write_gguf
from tests.text.samples import byte_level

FLAT = ((1, 0.02), (64, 0.02))  # large trees
ORIGINAL, LONGEST, HEAD = 32, 128, 16
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
SHORT, LONG = [1.0, 1.1, 1.3, 1.4, 1.7, 2.0], [1.0, 1.5, 2.5, 4.0, 7.0, 11.0]  # 12 of 16 dimensions are rotated
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": SHORT,
    "long_factor": LONG,
    "attention_factor": 1.19,
    "original_max_position_embeddings": ORIGINAL,
    "partial_rotary_factor": 0.75,
}
SIZES: dict[str, Any] = {
    "hidden_size": 4 * HEAD,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LONGEST,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "initializer_range": 0.3,  # attention that depends on positions
}
CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
}
TOKENIZER = byte_level()


def reference(kind: str, rope: dict[str, Any], **more: Any) -> Any:
    torch.manual_seed(0)
    config_class, model_class = CLASSES[kind]
    return model_class(config_class(vocab_size=len(TOKENIZER), rope_parameters=dict(rope), **SIZES, **more)).eval()


def llama3_divisors() -> np.ndarray:
    """As llama.cpp's converter computes them."""
    wavelengths = 2 * math.pi * LLAMA3["rope_theta"] ** (np.arange(0, HEAD, 2) / HEAD)
    low, high = ORIGINAL / LLAMA3["low_freq_factor"], ORIGINAL / LLAMA3["high_freq_factor"]
    divisors: list[float] = []
    for wavelength in wavelengths:
        if wavelength < high:
            divisors.append(1.0)
        elif wavelength > low:
            divisors.append(LLAMA3["factor"])
        else:
            smooth = (ORIGINAL / wavelength - 1.0) / 3.0
            divisors.append(1 / ((1 - smooth) / LLAMA3["factor"] + smooth))
    assert len(set(divisors)) > 2  # all three cases
    return np.array(divisors, np.float32)


def say_longrope(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_orig_ctx_len(ORIGINAL)
    writer.add_rope_scaling_attn_factors(LONGROPE["attention_factor"])
    writer.add_pad_token_id(0)  # in place of the 32000 of this type


def say_linear(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


def say_yarn(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(ORIGINAL)


FACTORS = {
    "rope_factors_long.weight": np.array(LONG, np.float32),
    "rope_factors_short.weight": np.array(SHORT, np.float32),
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, np.ndarray], Callable[[gguf.GGUFWriter], Any]]] = {
    "llama3": ("llama", LLAMA3, {"rope_freqs.weight": llama3_divisors()}, lambda writer: None),
    "longrope": ("phi3", LONGROPE, FACTORS, say_longrope),
    "yarn": ("qwen2", YARN, {}, say_yarn),
    "linear": ("llama", LINEAR, {}, say_linear),
}


def given(case: str, folder: Path) -> tuple[Any, Path]:
    """The model, and the file made of it."""
    kind, rope, tensors, say = CASES[case]
    more = {"original_max_position_embeddings": ORIGINAL} if kind == "phi3" else {}
    model = reference(kind, rope, **more)
    write_gguf(folder / "made.gguf", model, TOKENIZER, extra=tensors, say=say)
    return model, folder / "made.gguf"


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return result


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_logits_and_greedy_tokens_are_those_of_the_model(tmp_path: Path, case: str) -> None:
    model, path = given(case, tmp_path)
    ids = np.random.default_rng(0).integers(3, len(TOKENIZER), LONGEST).tolist()
    unscaled = reference(CASES[case][0], {"rope_type": "default", "rope_theta": CASES[case][1]["rope_theta"]})
    unscaled.load_state_dict(model.state_dict())
    for _ in range(2):  # just converted, and loaded again
        loaded = load_model(str(path), dtype="float32", device="cpu", cache_dir=tmp_path / "cache")
        assert loaded.max_context == LONGEST
        for length in (ORIGINAL - 4, LONGEST):
            expected = logits(model, ids[:length])
            assert torch.allclose(logits(loaded.model, ids[:length]), expected, atol=1e-4)
        assert not torch.allclose(logits(unscaled, ids), expected, atol=1e-1)

    prompt, count = ids[: ORIGINAL + 8], 40
    greedy = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None)[0, len(prompt) :]
    with Engine(loaded, EngineConfig(max_nodes=16, prior_rows=0, cost_curve=FLAT)) as engine:
        assert engine.info.tree_attention
        request = GenerationRequest(
            tuple(prompt), SamplingParams(0.0), StopParams(count, ignore_eos=True), SpeculationParams(max_nodes=16)
        )
        assert list(engine.generate(request).token_ids) == greedy.tolist()


def test_a_context_within_the_original_one_takes_the_short_factors(tmp_path: Path) -> None:
    model, path = given("longrope", tmp_path)
    loaded = load_model(str(path), dtype="float32", device="cpu", cache_dir=tmp_path / "cache")
    prompt = list(range(3, 15))
    greedy = model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False, eos_token_id=None)[0, len(prompt) :]
    with Engine(loaded, EngineConfig(max_nodes=4, prior_rows=0, max_context=ORIGINAL, cost_curve=FLAT)) as engine:
        request = GenerationRequest(tuple(prompt), SamplingParams(0.0), StopParams(16, ignore_eos=True), SpeculationParams())
        assert list(engine.generate(request).token_ids) == greedy.tolist()


def test_divisors_and_a_linear_factor_are_multiplied(tmp_path: Path) -> None:
    divisors = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], np.float32)
    model = reference("llama", {"rope_type": "default", "rope_theta": 10000.0})
    write_gguf(tmp_path / "made.gguf", model, TOKENIZER, extra={"rope_freqs.weight": divisors}, say=say_linear)
    loaded = load_model(str(tmp_path / "made.gguf"), dtype="float32", device="cpu", cache_dir=tmp_path / "cache")
    expected = model.model.rotary_emb.inv_freq / torch.tensor(divisors) / 4.0
    assert torch.allclose(loaded.model.model.rotary_emb.inv_freq, expected, rtol=1e-6)


def test_divisors_of_one_change_nothing(tmp_path: Path) -> None:
    model = reference("llama", {"rope_type": "default", "rope_theta": 10000.0})
    ones = {"rope_freqs.weight": np.ones(HEAD // 2, np.float32)}
    write_gguf(tmp_path / "made.gguf", model, TOKENIZER, extra=ones)
    loaded = load_model(str(tmp_path / "made.gguf"), dtype="float32", device="cpu", cache_dir=tmp_path / "cache")
    ids = list(range(3, LONGEST))
    assert torch.allclose(logits(loaded.model, ids), logits(model, ids), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "tensors", "scaling", "words"),
    [
        ("llama", {"rope_freqs.weight": np.ones(3, np.float32)}, None, "8 pairs"),
        ("llama", {"rope_freqs.weight": np.zeros(8, np.float32)}, None, "positive"),
        ("llama", {"rope_freqs.weight": np.full(8, np.nan, np.float32)}, None, "positive"),
        ("llama", {"rope_freqs.weight": np.ones(8, np.float32)}, "yarn", "two at once"),
        ("llama", {"rope_factors_long.weight": np.ones(8, np.float32)}, None, "missing"),
        ("llama", {}, "longrope", "missing"),
        ("llama", {}, "spiral", "spiral"),
    ],
)
def test_what_cannot_be_carried_over_is_refused(
    tmp_path: Path, kind: str, tensors: dict[str, np.ndarray], scaling: str | None, words: str
) -> None:
    def say(writer: gguf.GGUFWriter) -> None:
        if scaling is not None:
            writer.add_string(f"{kind}.rope.scaling.type", scaling)

    model = reference(kind, {"rope_type": "default", "rope_theta": 10000.0})
    write_gguf(tmp_path / "made.gguf", model, TOKENIZER, extra=tensors, say=say)
    with pytest.raises(ModelLoadError, match=words):
        load_model(str(tmp_path / "made.gguf"), dtype="float32", device="cpu", cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("config.json"))


def test_the_conversion_says_what_was_applied(tmp_path: Path) -> None:
    _, path = given("llama3", tmp_path)
    load_model(str(path), dtype="float32", device="cpu", cache_dir=tmp_path / "cache")
    (config,) = (tmp_path / "cache").rglob("config.json")
    rope = json.loads(config.read_text())["rope_parameters"]
    assert rope["short_factor"] == rope["long_factor"] == llama3_divisors().tolist()
    assert (rope["rope_theta"], rope["attention_factor"]) == (5000.0, 1.0)
