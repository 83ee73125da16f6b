"""Which token the target takes after each node of a session's tree, and what a walk may ask about it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from app.engine.sampling.choose import choose, is_greedy, narrowed
from app.engine.session import Session
from csd.verify import RowLogits
from racer.tree import DraftTree


class Chooser:
    """The target's token after a node of one session's tree. Not to be used again once the session has emitted."""

    __slots__ = ("drawn", "greedy", "logits", "path", "row", "session", "tree")

    def __init__(
        self,
        session: Session,
        tree: DraftTree,
        logits: torch.Tensor,
        greedy: list[int],
        drawn: Collection[int] = (),
    ) -> None:
        """logits [n, vocabulary] and greedy [n], the likeliest token of each, after the n nodes of the tree.

        drawn: depths at which the draft model's token is not its own likeliest.
        """
        self.session, self.tree, self.logits, self.greedy, self.drawn = session, tree, logits, greedy, drawn
        self.path: list[int] = []  # tokens below the root, down to the node that was last asked for
        self.row: torch.Tensor | None = None  # of that node, as the logits processor leaves it; None: raw

    def __call__(self, node: int, emitted: int) -> int:
        """emitted: how deep the node lies. A walk asks for the root and then for one node below the other."""
        session = self.session
        sampling, position = session.request.sampling, len(session.answer.tokens) + emitted
        if session.processor is not None:
            if node > 0:
                self.path.append(int(self.tree.tokens[node]))
            raw = self.logits[node]
            row = session.processor.apply(raw, self.path)
            self.row = None if row is raw else row
            return choose(row, sampling, session.generation.seed, position)
        if is_greedy(sampling):
            return self.greedy[node]
        return choose(self.logits[node], sampling, session.generation.seed, position)

    def protects(self, token: int) -> bool:
        """Whether a token neither is rescued nor gives way at the node last asked for."""
        session = self.session
        return token in session.generation.protected or (session.processor is not None and session.processor.forbids(token))

    def teaches(self, node: int, child: int, token: int) -> bool:
        """Whether a divergence there says something of the models: each took what it finds likeliest, and no rule had a part.

        What noise, a bias, a penalty or a grammar brought about is the request's, and must not decide about other requests.
        """
        natural = self.session.processor is None and token == self.greedy[node]
        return natural and int(self.tree.depth[child]) not in self.drawn

    def read(self, node: int, tokens: Sequence[int]) -> list[RowLogits]:
        """The target's raw logits of a few tokens after the node last asked for; then, where the request changes them or draws
        from a part of the vocabulary only, what that leaves of them."""
        raw = self.logits[node]
        index = torch.tensor([*tokens, self.greedy[node]], device=raw.device)
        *drafts, highest = raw[index].float().tolist()
        readings = [RowLogits(drafts, highest)]
        changed = narrowed(raw if self.row is None else self.row, self.session.request.sampling)
        if changed is not raw:
            *drafts, highest = torch.cat([changed[index[:-1]], changed.max()[None]]).float().tolist()
            readings.append(RowLogits(drafts, highest))
        return readings
