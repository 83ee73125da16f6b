"""Reading prompts: in chunks, or taken over from an earlier turn or from a sibling that has read the same one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from app.engine.draft.model import DraftCache, DraftModel
from app.engine.forward.kv import KVSlab
from app.engine.forward.target import Rows, Target
from app.engine.prefix.learnt import LearntRows
from app.engine.prefix.siblings import ReadPrompt
from app.engine.sampling.choose import choose, is_greedy
from app.engine.sampling.logits import logprobs_for, successors, token_logprobs
from app.engine.sampling.logits_processor import TokenRules
from app.engine.session import Session, Stage
from racer.drafter import Drafter
from racer.tree import Source

SLACK = 64  # unused rows of KV that are kept rather than copied away


@dataclass(slots=True)
class Kept:
    """What is left of an ended session for the next turn of its conversation.

    tokens: prompt and answer, or what was read of a prompt whose client left; the drafter has observed all of them, and the
    slab holds the first of them, as a rule all or all but the last. prompt_length: how many of them were the prompt. slab:
    None once its room was needed.
    """

    tokens: tuple[int, ...]
    prompt_length: int
    slab: KVSlab | None
    drafter: Drafter
    drafter_kind: tuple[object, ...]
    draft: DraftCache | None

    @staticmethod
    def of(session: Session, room: Callable[[int], bool]) -> Kept | None:
        """None where there is nothing that a next turn could use.

        room: whether so many rows of KV can be had beside the session's own; else its slabs are kept as large as they are.
        """
        slab, drafter = session.cache, session.drafter
        if not isinstance(slab, KVSlab) or drafter is None or not slab.length:
            return None
        draft = session.draft
        if draft is not None and draft.slab is not None:
            draft.slab.crop(draft.agreed)
            draft.ahead.clear()
        if slab.capacity > slab.length + SLACK and room(slab.length):
            slab = slab.copy(slab.length, slab.length)
            if draft is not None and draft.slab is not None:
                draft.slab = draft.slab.copy(draft.agreed, draft.agreed)
        prompt = session.request.prompt_ids
        if not session.output:
            prompt = prompt[: session.observed]
        return Kept((*prompt, *session.output), len(prompt), slab, drafter, session.drafter_kind, draft)

    @property
    def rows(self) -> int:
        """Rows of KV that it occupies, of target and draft model alike."""
        return 0 if self.slab is None else self.slab.capacity

    @property
    def nbytes(self) -> int:
        """Bytes that it occupies: KV of target and draft model, and the drafter."""
        draft = None if self.draft is None else self.draft.slab
        return sum(slab.nbytes for slab in (self.slab, draft) if slab is not None) + self.drafter.nbytes

    def fits(self, session: Session) -> bool:
        """Whether the session can have the slab as its own."""
        return self.slab is not None and session.can_have(self.slab.capacity) and session.reads_from_cache

    def drop_cache(self) -> None:
        """Give the rows of KV up; the drafter goes on."""
        self.slab = self.draft = None


class PromptReader:
    """Opens sessions and takes them through their prompts. Used by the worker thread alone."""

    def __init__(self, target: Target, draft: DraftModel | None, *, vocab_size: int, top_k: int, chunk: int) -> None:
        self.target = target
        self.draft = draft
        self.vocab_size = vocab_size
        self.top_k = top_k
        self.chunk = chunk

    def open(self, session: Session, drafter: Drafter, kept: Kept | None = None, read: ReadPrompt | None = None) -> None:
        """Give a session its rows of KV, and what an earlier turn, or a sibling that has ended, has read of its prompt.

        The drafter of that turn goes on where the history still holds its prompt; else the new one starts afresh. The slabs of
        either become the session's own where they fit. One that had given its rows up keeps all else that it has.
        """
        again = session.drafter is not None
        if not again:
            session.drafter = drafter
            if TokenRules.needed(session.request):
                session.rules = TokenRules(session.request, session.ends, self.vocab_size, self.target.device)
        moved: Kept | ReadPrompt | None = kept if read is None else read
        if moved is not None and not self.fits(moved, session):
            moved = None
        session.cache = self.target.open(session.rows) if moved is None or moved.slab is None else moved.slab
        session.prefilled = 0
        self._open_draft(session, None if moved is None or moved.draft is None else moved.draft.slab, again=again)
        if read is not None:
            self.copy(read, session)
        elif kept is not None and session.reads_from_cache:
            self._go_on(session, kept)

    def _open_draft(self, session: Session, slab: KVSlab | None, *, again: bool) -> None:
        if self.draft is None or not session.asks_draft_model:
            return
        if not again:
            session.draft = self.draft.open(session.request.prompt_ids, session.rows, slab)
        elif session.draft is not None:
            self.draft.reopen(session.draft, session.rows, slab)

    @staticmethod
    def _go_on(session: Session, kept: Kept) -> None:
        """Take over what an earlier turn has read of the prompt."""
        prompt, rows = session.request.prompt_ids, 0
        common = common_length(kept.tokens, prompt)
        if kept.slab is not None and isinstance(session.cache, KVSlab):
            rows = min(common, kept.slab.length, len(prompt) - 1)  # the last token is always read, for what comes after it
            session.cache.load(kept.slab, rows)
        session.prefilled = session.cached_tokens = rows
        if common >= kept.prompt_length and kept.drafter_kind == session.drafter_kind:
            session.drafter, session.observed = kept.drafter, common
        elif session.drafter is not None:
            session.drafter.observe(np.asarray(prompt[:rows], np.int64))
            session.observed = rows
        if session.draft is not None and kept.draft is not None:
            session.draft.take_over(kept.draft, rows)

    def fits(self, old: Kept | ReadPrompt, session: Session) -> bool:
        """Whether the session can have the slabs as its own, also that of the draft model."""
        slab = None if old.draft is None else old.draft.slab
        if slab is None or self.draft is None or not session.asks_draft_model:
            return old.fits(session)
        return old.fits(session) and slab.capacity >= self.draft.capacity(old.rows)

    def grow(self, session: Session, rows: int) -> None:
        """Give a session's caches room for so many rows."""
        cache = session.cache
        if isinstance(cache, KVSlab):
            session.cache = cache.copy(rows, cache.length)
        elif cache is not None:
            cache.capacity = rows
        if self.draft is not None and session.draft is not None:
            self.draft.grow(session.draft, rows)

    def copy(self, read: ReadPrompt, session: Session) -> None:
        """Take over the prompt that a sibling of the same group has read."""
        prompt, rows = session.request.prompt_ids, len(session.request.prompt_ids) - 1
        if not isinstance(session.cache, KVSlab) or session.drafter is None:
            return
        session.cache.load(read.slab, rows)
        session.prefilled = rows
        if session.draft is not None and read.draft is not None:
            session.draft.take_over(read.draft, rows)
        if session.observed < rows:
            session.drafter.observe(np.asarray(prompt[session.observed : rows], np.int64))
            session.observed = rows
        for learnt in read.learnt:
            self._learn(session, learnt)
        session.prompt_rows, session.prompt_scores = list(read.learnt), read.scores  # for those to come
        if not session.output:
            session.prompt_logprobs = list(read.scores)

    def advance(self, session: Session) -> None:
        """Read the next chunk of the prompt; with the last one the first token of the answer is emitted.

        Of a session that had given its rows up: of prompt and answer, until it stands where it stood.
        """
        if session.output:
            self._read_again(session)
            return
        prompt, first = session.request.prompt_ids, session.prefilled
        chunk = prompt[first : first + self.chunk]
        last = first + len(chunk) == len(prompt)
        cache, drafter = session.cache, session.drafter
        assert cache is not None and drafter is not None
        scored = session.request.prompt_logprobs and len(session.prompt_logprobs) < len(prompt)
        learns = drafter.learns and session.learnt < first + len(chunk)
        logits_from = 0 if learns or scored else len(chunk) - 1
        logits = self.target.forward([Rows.of_text(cache, chunk, logits_from)])[:, : self.vocab_size]
        cache.commit(list(range(len(chunk))))
        session.prefilled += len(chunk)
        tokens = np.asarray(chunk, np.int64)
        drafter.observe(tokens[max(0, session.observed - first) :])
        session.observed = max(session.observed, session.prefilled)
        self._catch_up(session)
        if scored:
            self._score(session, logits, first)
        if learns:
            top = successors(logits, self.top_k, probabilities=True)
            before = np.concatenate([[prompt[first - 1] if first else -1], tokens[:-1]])
            self._learn(session, LearntRows(first, tokens, top.ids, top.probabilities, before))
        if last:
            token = self._first_token(session, logits[-1:])
            drafter.observe(np.asarray([token], np.int64))
            session.stage = Stage.DECODE
            session.emit([token], [Source.TARGET], logprobs=logprobs_for(session, logits, [-1], [token]))

    def _read_again(self, session: Session) -> None:
        """The next chunk of a text that was read before. Nothing comes of it but rows of KV."""
        cache, first = session.cache, session.prefilled
        assert cache is not None
        chunk = session.text(first, min(first + self.chunk, session.readable))
        self.target.forward([Rows.of_text(cache, chunk, len(chunk) - 1)])
        cache.commit(list(range(len(chunk))))
        session.prefilled += len(chunk)
        self._catch_up(session)
        if session.prefilled == session.readable:
            session.stage = Stage.DECODE

    def _catch_up(self, session: Session) -> None:
        """Let the draft model read what the target has of the prompt; the answer is its own business, step by step."""
        if self.draft is not None and session.draft is not None:
            self.draft.catch_up(session.draft, session.request.prompt_ids[: session.prefilled])

    @staticmethod
    def _learn(session: Session, rows: LearntRows) -> None:
        """Teach the drafter what it has not learnt yet."""
        fresh = rows.since(session.learnt)
        if session.drafter is None or not session.drafter.learns or not len(fresh.tokens):
            return
        session.drafter.learn(*fresh[1:])
        session.learnt = fresh.end
        if session.request.group is not None:
            session.prompt_rows.append(fresh)

    def _first_token(self, session: Session, row: torch.Tensor) -> int:
        if session.rules is None and is_greedy(session.request.sampling):
            return int(successors(row, self.top_k, probabilities=False).ids[0, 0])
        scores = row[0] if session.rules is None else session.rules.apply(row[0], ())
        return choose(scores, session.request.sampling, session.seed, 0)

    @staticmethod
    def _score(session: Session, logits: torch.Tensor, first: int) -> None:
        """Log-probabilities of the prompt tokens that follow the rows of a chunk, as far as they are not known yet.

        first: place of the first row in the prompt. The first token of a prompt has none.
        """
        if not session.prompt_logprobs:
            session.prompt_logprobs.append(None)
        known = len(session.prompt_logprobs)
        following = session.request.prompt_ids[known : session.prefilled + 1]
        if following:
            rows = logits[known - 1 - first :][: len(following)]
            session.prompt_logprobs += token_logprobs(rows, following, session.request.logprobs or 0)
        if session.request.group is not None:
            session.prompt_scores = list(session.prompt_logprobs)


def least_bytes(session: Session) -> int:
    """What it takes at least to keep a session's state; 0 where there is none."""
    slab, drafter = session.cache, session.drafter
    if not isinstance(slab, KVSlab) or drafter is None:
        return 0
    return slab.nbytes * slab.length // slab.capacity + drafter.nbytes


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts begin with in common."""
    n = min(len(first), len(second))
    differ = np.flatnonzero(np.asarray(first[:n]) != np.asarray(second[:n]))
    return int(differ[0]) if differ.size else n
