"""Carries over the rotary scaling of a GGUF file, which transformers silently ignores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np

from app.engine.errors import ModelLoadError

# One divisor of the inverse frequency for each pair of dimensions. The first is Llama 3.1's, already computed for its context;
# the others are LongRoPE's, of which one is chosen by the longest text possible (app.engine.models.rope).
_FREQS, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
_CUT_ROTATION = ("phi3",)  # model types that can rotate a part of each head, as the file says


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """The scaling as the file states it. divisors: by tensor name."""

    divisors: dict[str, list[float]]
    kind: str  # none, linear, yarn or longrope
    factor: float | None
    attention_factor: float | None
    original_context: int | None
    yarn: dict[str, float]  # its other settings, by transformers' names
    dimensions: int | None  # of a head that are rotated


def read_scaling(reader: gguf.GGUFReader, content: Callable[[str], Any]) -> RopeScaling:
    """content: returns the value of a key, or None. A damaged file can raise any exception."""
    architecture = content("general.architecture")

    def value(key: str) -> Any:
        return content(f"{architecture}.rope.{key}")

    divisors = {
        tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).flatten().tolist()
        for tensor in reader.tensors
        if tensor.name in (_FREQS, _LONG, _SHORT)
    }
    kind, factor = value("scaling.type"), value("scaling.factor")
    if kind is None and (older := value("scale_linear")) is not None:
        kind, factor = "linear", older
    betas = {"beta_fast": value("scaling.yarn_beta_fast"), "beta_slow": value("scaling.yarn_beta_slow")}
    return RopeScaling(
        divisors=divisors,
        kind=kind or "none",
        factor=factor,
        attention_factor=value("scaling.attn_factor"),
        original_context=value("scaling.original_context_length"),
        yarn={name: number for name, number in betas.items() if number is not None},
        dimensions=value("dimension_count"),
    )


def apply_scaling(config: Any, scaling: RopeScaling, name: str) -> None:
    """Write the scaling into a transformers configuration that lacks it. name: of the file. Raises ModelLoadError."""
    text = config.get_text_config()
    parameters = getattr(text, "rope_parameters", None)
    if not isinstance(parameters, dict):
        if scaling.divisors or scaling.kind != "none":
            raise _refused(name, "its architecture has no such setting")
        return
    if any(isinstance(part, dict) for part in parameters.values()):  # layers with windows are never scaled
        parameters = parameters.get("full_attention")
        if scaling.divisors or parameters is None:
            raise _refused(name, "its layers rotate in several ways")
    if parameters.get("rope_type", "default") != "default":  # transformers has read it
        if scaling.divisors:
            raise _refused(name, "it asks for two at once")
        return
    _cut_rotation(text, parameters, scaling, name)
    parameters.update(_parameters_of(text, scaling, name))
    original = parameters.get("original_max_position_embeddings")
    if original is not None and hasattr(text, "original_max_position_embeddings"):
        text.original_max_position_embeddings = original  # these model types prefer it to the parameters


def _parameters_of(text: Any, scaling: RopeScaling, name: str) -> dict[str, Any]:
    longest, factor = int(text.max_position_embeddings), scaling.factor or 1.0
    divisors = scaling.divisors.get(_FREQS)
    if _LONG in scaling.divisors or _SHORT in scaling.divisors:
        if not {_LONG, _SHORT} <= scaling.divisors.keys():
            raise _refused(name, "one of its two lists of factors is missing")
        original = scaling.original_context or getattr(text, "original_max_position_embeddings", None) or longest
        found = _longrope(scaling.divisors[_SHORT], scaling.divisors[_LONG], original, longest)
        return found if scaling.attention_factor is None else found | {"attention_factor": scaling.attention_factor}
    if scaling.kind == "yarn":
        if divisors is not None:
            raise _refused(name, "it asks for two at once")
        return _yarn(scaling, longest)
    if scaling.kind not in ("none", "linear", "longrope"):
        raise _refused(name, f"the type {scaling.kind!r} is unknown")
    if divisors is not None:
        scaled = [divisor * (factor if scaling.kind == "linear" else 1.0) for divisor in divisors]
        return _longrope(scaled, scaled, longest, longest) | {"attention_factor": 1.0}
    if scaling.kind == "longrope":
        raise _refused(name, "its lists of factors are missing")
    return {"rope_type": "linear", "factor": factor} if scaling.kind == "linear" and factor != 1.0 else {}


def _longrope(short: list[float], long: list[float], original: int, longest: int) -> dict[str, Any]:
    """Divisors of each frequency, up to the original context and beyond it; equal lists are one scaling for all lengths."""
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
        "factor": max(1.0, longest / original),
    }


def _yarn(scaling: RopeScaling, longest: int) -> dict[str, Any]:
    factor = scaling.factor or 1.0
    original = scaling.original_context or round(longest / factor)
    found = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **scaling.yarn}
    if scaling.attention_factor is not None:  # multiplies what YaRN computes by itself
        found["attention_factor"] = scaling.attention_factor * (1.0 + 0.1 * math.log(max(1.0, factor)))
    return found


def _cut_rotation(text: Any, parameters: dict[str, Any], scaling: RopeScaling, name: str) -> None:
    """Check the lists against the dimensions of a head. Where only a part of them is rotated, write how many."""
    if getattr(text, "head_dim", 0) is None:
        text.head_dim = text.hidden_size // text.num_attention_heads
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    rotated = int(head * parameters.get("partial_rotary_factor", 1.0))
    if scaling.dimensions and text.model_type in _CUT_ROTATION and scaling.dimensions < head:
        rotated = scaling.dimensions
        parameters["partial_rotary_factor"] = rotated / head
    for tensor, divisors in scaling.divisors.items():
        if len(divisors) != rotated // 2 or not all(0.0 < divisor < math.inf for divisor in divisors):
            raise _refused(name, f"{tensor} is not one positive number for each of {rotated // 2} pairs")


def _refused(name: str, reason: str) -> ModelLoadError:
    return ModelLoadError(
        f"{name} scales its rotary embedding in a way that cannot be carried over from GGUF: {reason}. "
        "Use the safetensors version of this model."
    )
