"""What the target itself thinks of an answer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from app.engine.forward.target import Rows, Target


@torch.inference_mode()
def mean_log_probability(
    target: Target, prompt: Sequence[int], answer: Sequence[int], vocab_size: int, chunk: int = 128
) -> float | None:
    """Mean natural logarithm of the target's probability of each token of the answer, at temperature 1; None for no token."""
    if not answer:
        return None
    tokens = [*prompt, *answer]
    cache = target.open(len(tokens))
    total, first = 0.0, len(prompt) - 1  # the row of the prompt's last token predicts the answer's first
    for start in range(0, len(tokens) - 1, chunk):
        part = tokens[start : min(start + chunk, len(tokens) - 1)]
        asked = max(0, first - start)
        logits = target.forward([Rows.of_text(cache, part, min(asked, len(part) - 1))])[:, :vocab_size]
        cache.commit(list(range(len(part))))
        if asked >= len(part):
            continue
        following = torch.tensor(tokens[start + asked + 1 : start + len(part) + 1], device=logits.device)
        rows = logits.float().log_softmax(-1)
        total += float(rows.gather(-1, following[:, None]).sum())
    return total / len(answer)
