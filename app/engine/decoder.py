"""The decoding step: draft, forward, walk, commit, learn, over all running sessions at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from app.engine.cost.plain import PlainPace
from app.engine.draft.model import DraftModel
from app.engine.drafting import Draft, Drafting
from app.engine.events import StepRecord
from app.engine.forward.target import Rows, Target
from app.engine.prefill import PromptReader
from app.engine.sampling.logits import Chooser, Successors, logprobs_for, successors
from app.engine.session import Session
from app.engine.stopwatch import Stopwatch
from app.engine.tally import Tally
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
        own = {Source.RETRIEVAL, Source.COPY_LOGIT} if draft is None else {Source.DRAFT_MODEL}
        self._table_of = frozenset(own)
        self.corrections: CorrectionMemory | None = None
        self.listener: Callable[[Walk, list[float]], None] | None = None  # hears of exact walks and their logit gaps

    @property
    def models(self) -> list[Target]:
        return [self.target] if self.draft is None else [self.target, self.draft.packed]

    def probe(self) -> None:
        """Read one token with each model; raises what they raise."""
        for model in self.models:
            if model.forward([Rows.of_text(model.open(1), [0])]).isnan().all():
                raise RuntimeError("the model's logits are no numbers")

    def step(self, sessions: Sequence[Session]) -> StepRecord:
        """One verify step for each session; raises what drafting and the model raise, with no session changed.

        What fails for one session alone becomes its `failure`. The record holds those that emitted.
        """
        watch = Stopwatch(self.clock)
        with watch.phase("draft"):
            drafts = self.drafting.draft(sessions, self.curve if self.target.trees else None)
            trees = [draft.proposal.tree for draft in drafts]
        with watch.phase("forward"):
            logits = self._verify(sessions, trees)
        with watch.phase("walk"):
            learning = any(_drafter(session).learns for session in sessions)
            top = successors(logits, self.top_k, probabilities=learning)
            walks = self._walk(sessions, drafts, logits, top)
            self._remember(trees, walks, logits)
        tally = Tally()
        rows = 0
        for session, draft, walk in zip(sessions, drafts, walks, strict=True):
            first, rows = rows, rows + len(draft.proposal.tree)
            if walk is None:
                continue
            try:
                with watch.phase("commit"):
                    kept = self._emit(session, draft.proposal.tree, walk, logits, first)
                    tally.add(draft.proposal.tree, walk, kept)
                    assert session.cache is not None
                    session.cache.commit(list(walk.path[:kept]))  # all but the last emitted token, which is the next root
                with watch.phase("learn"):
                    self._learn(session, draft, walk, kept, top, first)
            except Exception as error:
                session.failure = error
        return self._record(tally, rows, watch)

    @staticmethod
    def _emit(session: Session, tree: DraftTree, walk: Walk, logits: torch.Tensor, first: int) -> int:
        """Hand a session the tokens of its walk; returns how many it took. first: row of its root."""
        scores = logprobs_for(session, logits, [first + node for node in walk.path], walk.tokens)
        kept = session.emit(walk.tokens, walk.sources, walk.rescued, scores, (tree, walk.path))
        session.counts.refused_by_gate += walk.refused_by_gate
        session.counts.step(len(tree) - 1, kept - 1)
        return kept

    def _record(self, tally: Tally, rows: int, watch: Stopwatch) -> StepRecord:
        """What a step over so many rows came to; what it took corrects what steps are thought to cost."""
        sessions, emitted = len(tally.accepted), sum(tally.by_source)
        plain_seconds = seconds = watch.elapsed
        if self.curve is not None and sessions:
            worked = seconds - watch.seconds["draft"]
            self.drafting.account(sessions, rows, emitted, self.curve)
            if self.refine:
                self.curve.observe(rows, worked)
            if self.plain is not None:
                if self.refine:
                    self.plain.observe(sessions, rows, worked)
                plain_seconds = self.plain.seconds(sessions, emitted)
        return tally.record(watch.seconds, seconds, plain_seconds)

    def _verify(self, sessions: Sequence[Session], trees: Sequence[DraftTree]) -> torch.Tensor:
        rows = []
        for session, tree in zip(sessions, trees, strict=True):
            assert session.cache is not None
            rows.append(Rows.of_tree(session.cache, tree))
        return self.target.forward(rows)[:, : self.vocab_size]

    def _walk(
        self, sessions: Sequence[Session], drafts: Sequence[Draft], logits: torch.Tensor, top: Successors
    ) -> list[Walk | None]:
        """A walk for each session; None where it failed."""
        greedy = top.ids[:, 0].tolist()
        walks: list[Walk | None] = []
        start = 0
        for session, draft in zip(sessions, drafts, strict=True):
            tree = draft.proposal.tree
            try:
                walks.append(self._walk_one(session, tree, Chooser(session, tree, logits, greedy, start, draft.drawn)))
            except Exception as error:
                session.failure = error
                walks.append(None)
            start += len(tree)
        return walks

    def _walk_one(self, session: Session, tree: DraftTree, chooser: Chooser) -> Walk:
        table_of, teaches = self._table_of, chooser.teaches
        if session.rule is None or len(tree) == 1:
            record = self.corrections is not None and len(tree) > 1
            return walk_exact(tree, chooser, record=record, table_of=table_of, teaches=teaches)
        read, protects, rule, memory = chooser.read, chooser.protects, session.rule, self.corrections
        return walk_csd(tree, chooser, read, rule, memory, protects, table_of=table_of, teaches=teaches)

    def _remember(self, trees: Sequence[DraftTree], walks: Sequence[Walk | None], logits: torch.Tensor) -> None:
        """Tell the correction memory, and a listener, what diverged."""
        if self.corrections is None:
            return
        start = 0
        for tree, walk in zip(trees, walks, strict=True):
            for draft, target in () if walk is None else walk.divergences:
                self.corrections.record(draft, target)
            if self.listener is not None and walk is not None:
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
