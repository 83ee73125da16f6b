"""Rotary embeddings that change with the length of a text are fixed for the longest one that can come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from app.engine.models.rope import freeze_rope

ORIGINAL, LONGEST = 16, 64
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [1.0, 2.0, 3.0, 4.0],
    "original_max_position_embeddings": ORIGINAL,
    "factor": 4.0,
}
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "factor": 4.0}
DEFAULT: dict[str, Any] = {"rope_type": "default"}


def model(rope: dict[str, Any]) -> Any:
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=ORIGINAL,
        rope_parameters={"rope_theta": 10000.0, **rope},
    )
    return LlamaForCausalLM(config).eval()


def angles(made: Any, length: int) -> torch.Tensor:
    cosines, sines = made.model.rotary_emb(torch.zeros(1, 1, 1), position_ids=torch.arange(length)[None])
    return torch.cat([cosines[0], sines[0]], -1)


@pytest.mark.parametrize("rope", [LONGROPE, DYNAMIC], ids=lambda rope: rope["rope_type"])
def test_every_length_is_rotated_as_the_longest(rope: dict[str, Any]) -> None:
    made, expected = model(rope), angles(model(rope), LONGEST)
    assert not torch.allclose(angles(made, ORIGINAL), expected[:ORIGINAL])  # what would go wrong
    assert freeze_rope(made, LONGEST) == 1
    for length in (LONGEST, 1, ORIGINAL, LONGEST, ORIGINAL - 1):
        assert torch.equal(angles(made, length), expected[:length])
    assert freeze_rope(made, LONGEST) == 0  # it is done


@pytest.mark.parametrize("rope", [LONGROPE, DYNAMIC], ids=lambda rope: rope["rope_type"])
def test_the_original_context_is_rotated_as_it_was_trained(rope: dict[str, Any]) -> None:
    made, expected = model(rope), angles(model(rope), ORIGINAL)
    assert freeze_rope(made, ORIGINAL) == 1
    assert torch.equal(angles(made, ORIGINAL), expected)


def test_what_does_not_change_is_left_alone() -> None:
    made = model(DEFAULT)
    assert freeze_rope(made, LONGEST) == 0
    assert "forward" not in vars(made.model.rotary_emb)
