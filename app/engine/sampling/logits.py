"""Rows of the target's logits: their likeliest tokens and their log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from app.engine.events import TokenLogprob


@dataclass(frozen=True, slots=True)
class Successors:
    """The k likeliest next tokens after each of n rows, likeliest first, the lower id first among equals.

    ids int64 [n, k]; probabilities float32 [n, k] at temperature 1, zeros where they are not used.
    """

    ids: np.ndarray
    probabilities: np.ndarray

    def rows(self, start: int, stop: int) -> Successors:
        return Successors(self.ids[start:stop], self.probabilities[start:stop])


def successors(logits: torch.Tensor, k: int, *, probabilities: bool) -> Successors:
    """Top-k of rows of raw logits [n, vocabulary]. The softmax stays in the model's dtype: drafting needs no more."""
    wide = min(max(k, 2), logits.shape[-1])
    values, ids = torch.topk(logits, wide, dim=-1)
    found = torch.softmax(logits, -1).gather(-1, ids).float() if probabilities else torch.zeros(ids.shape)
    order, scores, probs = ids.cpu().numpy(), values.float().cpu().numpy(), found.cpu().numpy()
    places = np.lexsort((order, -scores))
    order = np.take_along_axis(order, places, 1)
    for row in np.flatnonzero(scores[:, 0] == scores[:, -1]):  # topk takes any of those that tie
        equal = torch.nonzero(logits[int(row)] == logits[int(row)].max())[:wide, 0]
        order[row, : len(equal)] = equal.cpu().numpy()
    return Successors(order[:, :k], np.take_along_axis(probs, places, 1)[:, :k])


def token_logprobs(rows: torch.Tensor, tokens: Sequence[int], count: int) -> list[TokenLogprob]:
    """Log-probabilities of tokens [n] and of the `count` likeliest, from rows of raw logits [n, vocabulary]."""
    scores = torch.log_softmax(rows.float(), -1)
    index = torch.tensor(list(tokens), dtype=torch.long, device=rows.device)
    chosen = scores.gather(-1, index[:, None])[:, 0].tolist()
    if not count:
        return [TokenLogprob(value) for value in chosen]
    values, ids = torch.topk(scores, min(count, scores.shape[-1]), -1)
    tops = [tuple(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]
    return [TokenLogprob(value, top) for value, top in zip(chosen, tops, strict=True)]
