"""The verify step, over all running sessions at once: proposal, verify, walk, commit, learn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from app.engine.chooser import Chooser
from app.engine.cost.steps import StepCosts
from app.engine.draft.model import DraftModel
from app.engine.drafting import Drafting, Proposal
from app.engine.events import StepRecord
from app.engine.forward.target import Rows, Target
from app.engine.prefill import Prefill
from app.engine.sampling.logits import Successors, successors, token_logprobs
from app.engine.session import Session
from app.engine.step import Step, StepResult, Stopwatch, phase
from csd.memory import CorrectionMemory
from csd.verify import Walk, walk_csd, walk_exact
from racer.tree import Source


class Decoder:
    """Runs the target for sessions; knows nothing of queues and threads."""

    def __init__(
        self,
        target: Target,
        *,
        vocab_size: int,
        top_k: int,
        prefill_chunk: int,
        costs: StepCosts | None = None,
        draft_model: DraftModel | None = None,
        corrections: CorrectionMemory | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """vocab_size: ids that may be emitted; a padded vocabulary has rows beyond it that never are.

        costs: of steps. Without any every session verifies its whole budget. corrections: what csd has learnt, where it may.
        """
        self.target = target
        self.vocab_size = vocab_size
        self.top_k = top_k
        self.prefill = Prefill(target, draft_model, vocab_size=vocab_size, top_k=top_k, chunk=prefill_chunk)
        self.costs = costs
        self.draft_model = draft_model
        self.clock = clock
        self.watch = Stopwatch(clock)
        self.drafting = Drafting(draft_model)
        # a table belongs to one draft source: with a draft model, what n-grams miss says nothing of it
        self._table_of = frozenset({Source.RETRIEVAL, Source.COPY_LOGIT} if draft_model is None else {Source.DRAFT_MODEL})
        self.corrections = corrections
        self.listener: Callable[[Walk, list[float]], None] | None = None  # hears of exact walks and their logit gaps

    @property
    def models(self) -> list[Target]:
        return [self.target] if self.draft_model is None else [self.target, self.draft_model.packed]

    def probe(self) -> None:
        """Read one token with each model; raises what they raise."""
        for model in self.models:
            if model.forward([Rows.of_text(model.open(1), [0])]).isnan().all():
                raise RuntimeError("the model's logits are no numbers")

    def step(self, sessions: Sequence[Session]) -> StepResult:
        """One verify step for each session; raises what drafting and the model raise, with no session changed.

        What fails for one session alone becomes its `failure`.
        """
        self.watch = Stopwatch(self.clock)
        proposals = self._draft(sessions)
        logits = self._verify(proposals)
        steps = self._walk(proposals, logits)
        self._commit(steps)
        self._learn(steps)
        return StepResult([step for step in steps if step.tokens], len(logits), self.watch.seconds, self.watch.elapsed)

    @phase("draft")
    def _draft(self, sessions: Sequence[Session]) -> list[Proposal]:
        """A tree of candidates for each session."""
        return self.drafting.draft(sessions, None if self.costs is None else self.costs.curve)

    @phase("forward")
    def _verify(self, proposals: Sequence[Proposal]) -> torch.Tensor:
        """The target's raw logits [nodes of all trees, vocabulary], in one forward pass."""
        rows = [Rows.of_tree(proposal.session.cache, proposal.tree) for proposal in proposals]
        return self.target.forward(rows)[:, : self.vocab_size]

    @phase("walk")
    def _walk(self, proposals: Sequence[Proposal], logits: torch.Tensor) -> list[Step]:
        """Which path of its tree each session keeps; those whose walk fails are left out."""
        top = successors(logits, self.top_k, probabilities=any(proposal.session.drafter.learns for proposal in proposals))
        steps, end = [], 0
        for proposal in proposals:
            start, end = end, end + len(proposal.tree)
            rows, best = logits[start:end], top.rows(start, end)
            try:
                steps.append(Step(proposal, rows, best, self._walk_one(proposal, rows, best)))
            except Exception as error:
                proposal.session.failure = error
        return steps

    def _walk_one(self, proposal: Proposal, logits: torch.Tensor, top: Successors) -> Walk:
        tree, session = proposal.tree, proposal.session
        chooser = Chooser(session, tree, logits, top.ids[:, 0].tolist(), proposal.drawn)
        table_of, teaches, rule = self._table_of, chooser.teaches, session.generation.csd_rule
        if rule is None or len(tree) == 1:
            record = self.corrections is not None and len(tree) > 1
            return walk_exact(tree, chooser, record=record, table_of=table_of, teaches=teaches)
        read, protects = chooser.read, chooser.protects
        return walk_csd(tree, chooser, read, rule, self.corrections, protects, table_of=table_of, teaches=teaches)

    @phase("commit")
    def _commit(self, steps: Sequence[Step]) -> None:
        """Send each client its tokens, and keep the KV rows of the accepted path."""
        for step in steps:
            session, walk = step.session, step.walk
            try:
                scores = []
                if session.request.logprobs is not None:
                    scores = token_logprobs(step.logits[list(walk.path)], walk.tokens, session.request.logprobs)
                step.emitted = session.emit(walk.tokens, walk.sources, walk.rescued, scores, (step.tree, walk.path))
                step.count()
                session.cache.commit(list(step.path))  # all but the last emitted token, which is the next root
            except Exception as error:
                session.failure = error

    @phase("learn")
    def _learn(self, steps: Sequence[Step]) -> None:
        """Let whatever proposals, rescues or listens learn from what the target said."""
        for step in steps:
            if step.session.failure is None:
                try:
                    self._remember(step)
                    self.drafting.judge(step.proposal, step.path, step.tokens)
                    self._teach(step)
                except Exception as error:
                    step.session.failure = error

    def _remember(self, step: Step) -> None:
        """Tell the correction memory, and a listener, what diverged."""
        if self.corrections is None:
            return
        walk = step.walk
        for draft, target in walk.divergences:
            self.corrections.record(draft, target)
        if self.listener is not None:
            row = step.logits[walk.path[-1]]  # where an exact walk ends, and all it can have diverged at
            self.listener(walk, [float(row[draft] - row[target]) for draft, target in walk.divergences])

    @staticmethod
    def _teach(step: Step) -> None:
        """The drafter takes in the emitted tokens and the target's successors of every node."""
        drafter, tree = step.session.drafter, step.tree
        drafter.observe(np.asarray(step.tokens, np.int64))
        if not drafter.learns:
            return
        path = np.asarray(step.walk.path, np.int64)
        others = np.setdiff1d(np.arange(len(tree)), path)
        order = np.concatenate([others, path])  # rejected nodes first, so that the accepted path has the last word
        before = np.where(tree.parents > 0, tree.tokens[tree.parents], tree.tokens[0])
        before[0] = step.session.token_before_last(len(step.tokens))
        drafter.learn(tree.tokens[order], step.top.ids[order], step.top.probabilities[order], before[order])

    def account(self, result: StepResult) -> StepRecord:
        """Correct what steps are thought to cost by one that emitted, and sum it up for an observer."""
        sessions, plain_seconds = len(result.steps), result.seconds
        if self.costs is not None:
            self.drafting.account(sessions, result.rows, result.emitted, self.costs.curve)
            self.costs.observe(sessions, result.rows, result.seconds - result.phases["draft"])
            plain_seconds = self.costs.plain.seconds(sessions, result.emitted)
        return result.record(plain_seconds)
