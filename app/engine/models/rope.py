"""Fixes rotary embeddings that depend on the length of the text, for the longest text possible.

transformers chooses longrope and dynamic NTK frequencies by the largest position of each forward. Cached keys would keep the
old frequencies, and one session's length would change the rows of others. So they are chosen once, when the model is loaded.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

CHANGING = ("dynamic", "longrope")


def freeze_rope(model: Any, max_context: int) -> int:
    """Fix every rotary module whose frequencies depend on length to those of max_context tokens; returns how many."""
    frozen = 0
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        kinds = list(kinds.values()) if isinstance(kinds, dict) else [kinds]
        if not any(isinstance(kind, str) and kind in CHANGING for kind in kinds) or "forward" in vars(module):
            continue
        raw = inspect.unwrap(type(module).forward)
        if raw is type(module).forward:
            continue
        positions = torch.tensor([[max_context - 1]], device=model.device)
        sample = torch.zeros((1, 1, 1), dtype=model.dtype, device=model.device)
        layer_types = [None] if not isinstance(module.rope_type, dict) else list(module.rope_type)
        with torch.inference_mode(False), torch.no_grad():
            for layer_type in layer_types:
                arguments = {} if layer_type is None else {"layer_type": layer_type}
                module(sample, position_ids=positions, **arguments)
        module.forward = functools.partial(raw, module)
        frozen += 1
    return frozen
