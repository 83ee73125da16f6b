"""Rows of the target's logits: their likeliest tokens, their log-probabilities, and the token that a session takes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from app.engine.events import TokenLogprob
from app.engine.sampling.choose import choose, is_greedy, narrowed
from app.engine.session import Session
from csd.verify import Reading
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


def logprobs_for(session: Session, logits: torch.Tensor, rows: Sequence[int], tokens: Sequence[int]) -> list[TokenLogprob]:
    """What the session asked to know of tokens [n], from those rows [n] of raw logits [any, vocabulary]; seldom anything."""
    count = session.request.logprobs
    return [] if count is None else token_logprobs(logits[list(rows)], tokens, count)


class Chooser:
    """The target's token after a node of one session's tree. Not to be used again once the session has emitted."""

    __slots__ = ("drawn", "greedy", "logits", "path", "row", "session", "start", "tree")

    def __init__(
        self,
        session: Session,
        tree: DraftTree,
        logits: torch.Tensor,
        greedy: list[int],
        start: int,
        drawn: Collection[int] = (),
    ) -> None:
        """logits [n, vocabulary] and greedy [n], the likeliest of each, of all sessions; this one's begin at `start`.

        drawn: depths at which the draft model's token is not its own likeliest.
        """
        self.session, self.tree, self.logits, self.greedy, self.start, self.drawn = session, tree, logits, greedy, start, drawn
        self.path: list[int] = []  # tokens below the root, down to the node that was last asked for
        self.row: torch.Tensor | None = None  # of that node, as the session's rules leave it; None: raw

    def __call__(self, node: int, emitted: int) -> int:
        """emitted: how deep the node lies. A walk asks for the root and then for one node below the other."""
        session = self.session
        sampling, position = session.request.sampling, len(session.output) + emitted
        if session.rules is not None:
            if node > 0:
                self.path.append(int(self.tree.tokens[node]))
            raw = self.logits[self.start + node]
            row = session.rules.apply(raw, self.path)
            self.row = None if row is raw else row
            return choose(row, sampling, session.seed, position)
        if is_greedy(sampling):
            return self.greedy[self.start + node]
        return choose(self.logits[self.start + node], sampling, session.seed, position)

    def protects(self, token: int) -> bool:
        """Whether a token neither is rescued nor gives way at the node last asked for."""
        session = self.session
        return token in session.protected or (session.rules is not None and session.rules.forbids(token))

    def teaches(self, node: int, child: int, token: int) -> bool:
        """Whether a divergence there says something of the models: each took what it finds likeliest, and no rule had a part.

        What noise, a bias, a penalty or a grammar brought about is the request's, and must not decide about other requests.
        """
        natural = self.session.rules is None and token == self.greedy[self.start + node]
        return natural and int(self.tree.depth[child]) not in self.drawn

    def read(self, node: int, tokens: Sequence[int]) -> list[Reading]:
        """The target's raw logits of a few tokens after the node last asked for; then, where the request changes them or draws
        from a part of the vocabulary only, what that leaves of them."""
        raw = self.logits[self.start + node]
        index = torch.tensor([*tokens, self.greedy[self.start + node]], device=raw.device)
        *drafts, highest = raw[index].float().tolist()
        readings = [Reading(drafts, highest)]
        changed = narrowed(raw if self.row is None else self.row, self.session.request.sampling)
        if changed is not raw:
            *drafts, highest = torch.cat([changed[index[:-1]], changed.max()[None]]).float().tolist()
            readings.append(Reading(drafts, highest))
        return readings
