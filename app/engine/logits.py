"""Rows of the target's logits: their likeliest tokens, their log-probabilities, and the token that a session takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from app.engine.choose import choose, is_greedy
from app.engine.events import TokenLogprob
from app.engine.session import Session
from racer.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Successors:
    """The k likeliest next tokens after each of n rows, likeliest first, the lower id first among equals.

    ids int64 [n, k]; probabilities float32 [n, k] at temperature 1, zeros where nobody learns from them.
    """

    ids: np.ndarray
    probabilities: np.ndarray


def successors(logits: torch.Tensor, k: int, *, probabilities: bool) -> Successors:
    """Top-k of rows of raw logits [n, vocabulary]. The softmax stays in the model's dtype: drafting needs no more."""
    values, ids = torch.topk(logits, k, dim=-1)
    found = torch.softmax(logits, -1).gather(-1, ids).float() if probabilities else torch.zeros(ids.shape)
    order, scores = ids.cpu().numpy(), values.float().cpu().numpy()
    ties = scores[:, 0] == scores[:, min(1, k - 1)]
    for row in np.flatnonzero(ties) if k > 1 else ():
        equal = int(np.count_nonzero(scores[row] == scores[row, 0]))
        order[row, :equal] = np.sort(order[row, :equal])
    return Successors(order, found.cpu().numpy())


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


def logprobs_for(session: Session, logits: torch.Tensor, rows: Sequence[int], tokens: Sequence[int]) -> list[TokenLogprob]:
    """What the session asked to know of tokens [n], from those rows [n] of raw logits [any, vocabulary]; seldom anything."""
    count = session.request.logprobs
    return [] if count is None else token_logprobs(logits[list(rows)], tokens, count)


class Chooser:
    """The target's token after a node of one session's tree. Not to be used again once the session has emitted."""

    __slots__ = ("greedy", "logits", "path", "session", "start", "tree")

    def __init__(self, session: Session, tree: DraftTree, logits: torch.Tensor, greedy: list[int], start: int) -> None:
        """logits [n, vocabulary] and greedy [n], the likeliest of each, of all sessions; this one's begin at `start`."""
        self.session, self.tree, self.logits, self.greedy, self.start = session, tree, logits, greedy, start
        self.path: list[int] = []  # tokens below the root, down to the node that was last asked for

    def __call__(self, node: int, emitted: int) -> int:
        """emitted: how deep the node lies. A walk asks for the root and then for one node below the other."""
        session = self.session
        sampling, position = session.request.sampling, len(session.output) + emitted
        if session.rules is not None:
            if node > 0:
                self.path.append(int(self.tree.tokens[node]))
            row = session.rules.apply(self.logits[self.start + node], self.path)
            return choose(row, sampling, session.seed, position)
        if is_greedy(sampling):
            return self.greedy[self.start + node]
        return choose(self.logits[self.start + node], sampling, session.seed, position)

    def protects(self, token: int) -> bool:
        """Whether a token neither is rescued nor gives way at the node last asked for."""
        session = self.session
        return token in session.protected or (session.rules is not None and session.rules.forbids(token))

    def logits_of(self, node: int, tokens: Sequence[int]) -> list[float]:
        """The target's raw logits of a few tokens after a node."""
        values: list[float] = self.logits[self.start + node, list(tokens)].float().tolist()
        return values

    def likeliest(self, node: int) -> int:
        return self.greedy[self.start + node]
