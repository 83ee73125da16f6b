"""The decoding step: draft, forward, walk, commit, learn, over all running sessions at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from app.engine.choose import choose, is_greedy
from app.engine.events import PHASES, SOURCE_NAMES, StepRecord
from app.engine.session import Session, Stage
from app.engine.target import Rows, Target
from csd.verify import Walk, walk_exact
from racer.drafter import Drafter
from racer.tree import DraftTree, Source

logger = logging.getLogger(__name__)


class Stopwatch:
    """Seconds by phase of one step."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started


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


class Decoder:
    """Runs the target for sessions; knows nothing of queues and threads."""

    def __init__(self, target: Target, *, vocab_size: int, top_k: int, prefill_chunk: int) -> None:
        """vocab_size: ids that may be emitted; rows of a padded vocabulary behind it never are."""
        self.target = target
        self.vocab_size = vocab_size
        self.top_k = top_k
        self.prefill_chunk = prefill_chunk

    def prefill(self, session: Session) -> None:
        """Run the next chunk of the prompt; with the last one the first token of the answer is emitted."""
        prompt = session.request.prompt_ids
        chunk = prompt[session.prefilled : session.prefilled + self.prefill_chunk]
        last = session.prefilled + len(chunk) == len(prompt)
        cache, drafter = session.cache, session.drafter
        assert cache is not None and drafter is not None
        logits_from = 0 if drafter.learns else len(chunk) - 1
        logits = self.target.forward([Rows.of_text(cache, chunk, logits_from)])[:, : self.vocab_size]
        cache.commit(list(range(len(chunk))))
        session.prefilled += len(chunk)
        drafter.observe(np.asarray(chunk, np.int64))
        if drafter.learns:
            top = successors(logits, self.top_k, probabilities=True)
            drafter.learn(np.asarray(chunk, np.int64), top.ids, top.probabilities)
        if last:
            token = self._first_token(session, logits[-1:])
            session.stage = Stage.DECODE
            session.emit([token], [Source.TARGET])
            drafter.observe(np.asarray([token], np.int64))

    def _first_token(self, session: Session, row: torch.Tensor) -> int:
        if is_greedy(session.request.sampling):
            return int(successors(row, self.top_k, probabilities=False).ids[0, 0])
        return choose(row[0], session.request.sampling, session.seed, 0)

    def step(self, sessions: Sequence[Session]) -> StepRecord:
        """One verify step for each session; raises what the model raises, with no session changed."""
        watch = Stopwatch()
        with watch.phase("draft"):
            trees = [self._draft(session) for session in sessions]
        with watch.phase("forward"):
            logits = self._verify(sessions, trees)
        with watch.phase("walk"):
            learning = any(_drafter(session).learns for session in sessions)
            top = successors(logits, self.top_k, probabilities=learning)
            walks = self._walk(sessions, trees, logits, top)
        accepted, start = [], 0
        by_source = [0] * len(SOURCE_NAMES)
        for session, tree, walk in zip(sessions, trees, walks, strict=True):
            with watch.phase("commit"):
                kept = session.emit(walk.tokens, walk.sources)
                path = walk.path[:kept]  # the root and the kept drafts but the last emitted token, which is the next root
                assert session.cache is not None
                session.cache.commit(list(path))
                session.counts.step(len(tree) - 1, kept - 1)
                accepted.append(kept - 1)
                for source in (*walk.sources[: kept - 1], Source.TARGET):
                    by_source[source] += 1
            with watch.phase("learn"):
                self._learn(session, tree, walk, kept, top, start)
            start += len(tree)
        return StepRecord(
            sessions=len(sessions),
            drafts=sum(len(tree) > 1 for tree in trees),
            nodes=start,
            drafted=start - len(sessions),
            accepted_lengths=tuple(accepted),
            emitted_by_source=dict(zip(SOURCE_NAMES, by_source, strict=True)),
            phase_seconds=watch.seconds,
        )

    def _draft(self, session: Session) -> DraftTree:
        if session.budget == 1 or session.max_depth <= 0 or not self.target.trees:
            return DraftTree.root_only(session.output[-1])
        return _drafter(session).propose(session.budget, session.max_depth)

    def _verify(self, sessions: Sequence[Session], trees: Sequence[DraftTree]) -> torch.Tensor:
        rows = []
        for session, tree in zip(sessions, trees, strict=True):
            assert session.cache is not None
            rows.append(Rows.of_tree(session.cache, tree))
        return self.target.forward(rows)[:, : self.vocab_size]

    @staticmethod
    def _walk(sessions: Sequence[Session], trees: Sequence[DraftTree], logits: torch.Tensor, top: Successors) -> list[Walk]:
        greedy = top.ids[:, 0].tolist()
        walks, start = [], 0
        for session, tree in zip(sessions, trees, strict=True):
            walks.append(walk_exact(tree, _Chooser(session, logits, greedy, start)))
            start += len(tree)
        return walks

    @staticmethod
    def _learn(session: Session, tree: DraftTree, walk: Walk, kept: int, top: Successors, start: int) -> None:
        drafter = _drafter(session)
        drafter.observe(np.asarray(walk.tokens[:kept], np.int64))
        if not drafter.learns:
            return
        path = np.asarray(walk.path, np.int64)
        others = np.setdiff1d(np.arange(len(tree)), path)
        order = np.concatenate([others, path])  # rejected nodes first, so that the accepted path has the last word
        drafter.learn(tree.tokens[order], top.ids[start + order], top.probabilities[start + order])


class _Chooser:
    """The target's token after a node of one session's tree."""

    __slots__ = ("greedy", "logits", "session", "start")

    def __init__(self, session: Session, logits: torch.Tensor, greedy: list[int], start: int) -> None:
        self.session, self.logits, self.greedy, self.start = session, logits, greedy, start

    def __call__(self, node: int, emitted: int) -> int:
        session = self.session
        if is_greedy(session.request.sampling):
            return self.greedy[self.start + node]
        position = len(session.output) + emitted
        return choose(self.logits[self.start + node], session.request.sampling, session.seed, position)


def _drafter(session: Session) -> Drafter:
    assert session.drafter is not None
    return session.drafter
