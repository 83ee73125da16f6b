"""The decoding step: draft, forward, walk, commit, learn, over all running sessions at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from app.engine.draft_model import DraftModel
from app.engine.drafting import Draft, Drafting
from app.engine.events import SOURCE_NAMES, StepRecord
from app.engine.logits import Chooser, Successors, logprobs_for, successors
from app.engine.plain import PlainPace
from app.engine.prompts import PromptReader
from app.engine.session import Session
from app.engine.stopwatch import Stopwatch
from app.engine.target import Rows, Target
from csd.memory import CorrectionMemory
from csd.verify import Walk, walk_csd, walk_exact
from racer.budget import CostCurve
from racer.drafter import Drafter
from racer.tree import DraftTree, Source

logger = logging.getLogger(__name__)


class Decoder:
    """Runs the target for sessions; knows nothing of queues and threads."""

    def __init__(
        self,
        target: Target,
        *,
        vocab_size: int,
        top_k: int,
        prefill_chunk: int,
        curve: CostCurve | None = None,
        draft: DraftModel | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """vocab_size: ids that may be emitted; rows of a padded vocabulary behind it never are.

        curve: what a row costs. Without one every session verifies its whole budget.
        """
        self.target = target
        self.vocab_size = vocab_size
        self.top_k = top_k
        self.prompts = PromptReader(target, draft, vocab_size=vocab_size, top_k=top_k, chunk=prefill_chunk)
        self.curve = curve
        self.refine = True  # let each step correct what steps are thought to cost
        self.plain: PlainPace | None = None  # what steps are compared with; None: with themselves
        self.draft = draft
        self.clock = clock
        self.drafting = Drafting(draft)
        # a table belongs to one draft source: with a draft model, what n-grams miss says nothing of it
        self._teachers = frozenset(Source) - {Source.DRAFT_MODEL} if draft is None else frozenset({Source.DRAFT_MODEL})
        self.corrections: CorrectionMemory | None = None
        self.listener: Callable[[Walk, list[float]], None] | None = None  # hears of exact walks and their logit gaps

    def step(self, sessions: Sequence[Session]) -> StepRecord:
        """One verify step for each session; raises what the model raises, with no session changed."""
        watch = Stopwatch(self.clock)
        with watch.phase("draft"):
            drafts = self.drafting.draft(sessions, self.curve if self.target.trees else None)
            trees = [draft.proposal.tree for draft in drafts]
        with watch.phase("forward"):
            logits = self._verify(sessions, trees)
        with watch.phase("walk"):
            learning = any(_drafter(session).learns for session in sessions)
            top = successors(logits, self.top_k, probabilities=learning)
            walks = self._walk(sessions, trees, logits, top)
            self._remember(trees, walks, logits)
        accepted, start, rescues = [], 0, 0
        by_source = [0] * len(SOURCE_NAMES)
        for session, draft, walk in zip(sessions, drafts, walks, strict=True):
            tree = draft.proposal.tree
            with watch.phase("commit"):
                scores = logprobs_for(session, logits, [start + node for node in walk.path], walk.tokens)
                kept = session.emit(walk.tokens, walk.sources, walk.rescued, scores, (tree, walk.path))
                session.counts.refused_by_gate += walk.refused_by_gate
                rescues += sum(place < kept - 1 for place in walk.rescued)
                path = walk.path[:kept]  # the root and the kept drafts but the last emitted token, which is the next root
                assert session.cache is not None
                session.cache.commit(list(path))
                session.counts.step(len(tree) - 1, kept - 1)
                accepted.append(kept - 1)
                for source in (*walk.sources[: kept - 1], Source.TARGET):
                    by_source[source] += 1
            with watch.phase("learn"):
                self._learn(session, draft, walk, kept, top, start)
            start += len(tree)
        emitted = sum(accepted) + len(sessions)
        plain_seconds = seconds = watch.elapsed
        if self.curve is not None:
            worked = seconds - watch.seconds["draft"]
            self.drafting.account(len(sessions), start, emitted, self.curve)
            if self.refine:
                self.curve.observe(start, worked)
            if self.plain is not None:
                if self.refine:
                    self.plain.observe(len(sessions), start, worked)
                plain_seconds = self.plain.seconds(len(sessions), emitted)
        return StepRecord(
            sessions=len(sessions),
            drafts=sum(len(tree) > 1 for tree in trees),
            nodes=start,
            drafted=start - len(sessions),
            accepted_lengths=tuple(accepted),
            emitted_by_source=dict(zip(SOURCE_NAMES, by_source, strict=True)),
            phase_seconds=watch.seconds,
            rescues=rescues,
            nominated=sum(walk.nominated for walk in walks),
            refused_by_gate=sum(walk.refused_by_gate for walk in walks),
            budgets=tuple(map(len, trees)),
            seconds=seconds,
            plain_seconds=plain_seconds,
        )

    def _verify(self, sessions: Sequence[Session], trees: Sequence[DraftTree]) -> torch.Tensor:
        rows = []
        for session, tree in zip(sessions, trees, strict=True):
            assert session.cache is not None
            rows.append(Rows.of_tree(session.cache, tree))
        return self.target.forward(rows)[:, : self.vocab_size]

    def _walk(
        self, sessions: Sequence[Session], trees: Sequence[DraftTree], logits: torch.Tensor, top: Successors
    ) -> list[Walk]:
        greedy = top.ids[:, 0].tolist()
        walks, start = [], 0
        for session, tree in zip(sessions, trees, strict=True):
            chooser = Chooser(session, tree, logits, greedy, start)
            if session.rule is None or len(tree) == 1:
                walks.append(
                    walk_exact(tree, chooser, record=self.corrections is not None and len(tree) > 1, learn_from=self._teachers)
                )
            else:
                walks.append(
                    walk_csd(
                        tree,
                        chooser,
                        chooser.logits_of,
                        session.rule,
                        self.corrections,
                        chooser.protects,
                        chooser.likeliest,
                        self._teachers,
                    )
                )
            start += len(tree)
        return walks

    def _remember(self, trees: Sequence[DraftTree], walks: Sequence[Walk], logits: torch.Tensor) -> None:
        """Tell the correction memory, and a listener, what diverged."""
        if self.corrections is None:
            return
        start = 0
        for tree, walk in zip(trees, walks, strict=True):
            for draft, target in walk.divergences:
                self.corrections.record(draft, target)
            if self.listener is not None:
                row = logits[start + walk.path[-1]]  # where an exact walk ends, and all it can have diverged at
                gaps = [float(row[draft] - row[target]) for draft, target in walk.divergences]
                self.listener(walk, gaps)
            start += len(tree)

    def _learn(self, session: Session, draft: Draft, walk: Walk, kept: int, top: Successors, start: int) -> None:
        drafter, tree = _drafter(session), draft.proposal.tree
        self.drafting.judge(session, draft, walk.path[:kept], walk.tokens[:kept])
        before_root = session.token_before_last(kept)
        drafter.observe(np.asarray(walk.tokens[:kept], np.int64))
        if not drafter.learns:
            return
        path = np.asarray(walk.path, np.int64)
        others = np.setdiff1d(np.arange(len(tree)), path)
        order = np.concatenate([others, path])  # rejected nodes first, so that the accepted path has the last word
        before = np.where(tree.parents > 0, tree.tokens[tree.parents], tree.tokens[0])
        before[0] = before_root
        drafter.learn(tree.tokens[order], top.ids[start + order], top.probabilities[start + order], before[order])


def _drafter(session: Session) -> Drafter:
    assert session.drafter is not None
    return session.drafter
