"""Prefill: the prompts of running sessions, chunk by chunk, up to the first token of the answer."""

from __future__ import annotations

import numpy as np
import torch

from app.engine.draft.model import DraftModel
from app.engine.forward.target import Rows, Target
from app.engine.progress import LearntRows
from app.engine.sampling.choose import choose, is_greedy
from app.engine.sampling.logits import successors, token_logprobs
from app.engine.session import Session
from racer.tree import Source


class Prefill:
    """Takes sessions through their prompts. Used by the worker thread alone."""

    def __init__(self, target: Target, draft_model: DraftModel | None, *, vocab_size: int, top_k: int, chunk: int) -> None:
        """chunk: tokens of a prompt that one forward pass reads at most."""
        self.target = target
        self.draft_model = draft_model
        self.vocab_size = vocab_size
        self.top_k = top_k
        self.chunk = chunk

    def advance(self, session: Session) -> None:
        """Read the next chunk of the prompt; with the last one the first token of the answer is emitted.

        Where a session had given up its KV rows: of prompt and answer, until it stands where it stood.
        """
        if session.answer.tokens:
            self._read_again(session)
            return
        prompt, first = session.request.prompt_ids, session.cache.length
        chunk = prompt[first : first + self.chunk]
        scored = session.request.prompt_logprobs and len(session.progress.logprobs) < len(prompt)
        learns = session.drafter.learns and session.progress.learnt < first + len(chunk)
        logits_from = 0 if learns or scored else len(chunk) - 1
        logits = self.target.forward([Rows.of_text(session.cache, chunk, logits_from)])[:, : self.vocab_size]
        session.cache.commit(list(range(len(chunk))))
        tokens = np.asarray(chunk, np.int64)
        session.observe(first, tokens)
        self._catch_up(session)
        if scored:
            self._score(session, logits, first)
        if learns:
            top = successors(logits, self.top_k, probabilities=True)
            before = np.concatenate([[prompt[first - 1] if first else -1], tokens[:-1]])
            session.learn(LearntRows(first, tokens, top.ids, top.probabilities, before))
        if session.cache.length == len(prompt):
            self._begin_answer(session, logits[-1:])

    def _begin_answer(self, session: Session, row: torch.Tensor) -> None:
        """Emit the first token. row [1, vocabulary]: logits after the prompt."""
        request = session.request
        token = self._first_token(session, row)
        session.drafter.observe(np.asarray([token], np.int64))
        session.decoding = True
        scores = [] if request.logprobs is None else token_logprobs(row, [token], request.logprobs)
        emitted = session.emit([token], [Source.TARGET], logprobs=scores)
        for source in emitted.sources:
            session.answer.counts.by_source[source] += 1

    def _first_token(self, session: Session, row: torch.Tensor) -> int:
        if session.processor is None and is_greedy(session.request.sampling):
            return int(successors(row, self.top_k, probabilities=False).ids[0, 0])
        scores = row[0] if session.processor is None else session.processor.apply(row[0], ())
        return choose(scores, session.request.sampling, session.generation.seed, 0)

    def _read_again(self, session: Session) -> None:
        """The next chunk of a text that was read before. Nothing comes of it but KV rows."""
        first, end = session.cache.length, session.generation.text_length
        chunk = session.text(first, min(first + self.chunk, end))
        self.target.forward([Rows.of_text(session.cache, chunk, len(chunk) - 1)])
        session.cache.commit(list(range(len(chunk))))
        self._catch_up(session)
        session.decoding = session.cache.length == end

    def _catch_up(self, session: Session) -> None:
        """Let the draft model read what the target has of the prompt; it reads the answer step by step."""
        if self.draft_model is not None and session.draft_cache is not None:
            self.draft_model.catch_up(session.draft_cache, session.request.prompt_ids[: session.cache.length])

    @staticmethod
    def _score(session: Session, logits: torch.Tensor, first: int) -> None:
        """Log-probabilities of the prompt tokens that follow the rows of a chunk, as far as they are not known yet.

        first: place of the first row in the prompt. The first token of a prompt has none.
        """
        scores, request = session.progress.logprobs, session.request
        if not scores:
            scores.append(None)
        known = len(scores)
        following = request.prompt_ids[known : session.cache.length + 1]
        if following:
            rows = logits[known - 1 - first :][: len(following)]
            scores += token_logprobs(rows, following, request.logprobs or 0)
        if request.group is not None:
            session.progress.scores = list(scores)
