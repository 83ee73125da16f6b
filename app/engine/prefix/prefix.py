"""Text that was read before: what a later request that begins with it need not read again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from app.engine.draft.model import DraftCache
from app.engine.events import TokenLogprob
from app.engine.forward.kv import KVSlab
from app.engine.progress import LearntRows
from app.engine.session import Session
from racer.drafter import Drafter

SLACK = 64  # unused KV rows that are kept rather than copied away


@dataclass(frozen=True, slots=True)
class Prefix:
    """A text, the KV rows of its tokens, and what drafting learnt of it.

    tokens: the text, and prompt_length of them the prompt. slab: its first rows hold the first tokens, as a rule all or all but
    the last; None once the rows were needed for others. drafter: of a conversation, it has observed all tokens; None for a
    prompt with several choices, of which each has its own and learns `learnt`. scores: log-probabilities of the prompt, where
    they were asked for.
    """

    tokens: tuple[int, ...]
    prompt_length: int
    slab: KVSlab | None
    draft_cache: DraftCache | None = None
    drafter: Drafter | None = None
    drafter_kind: tuple[object, ...] = ()
    learnt: Sequence[LearntRows] = ()
    scores: list[TokenLogprob | None] = field(default_factory=list)

    @staticmethod
    def of_conversation(session: Session, room: Callable[[int], bool]) -> Prefix | None:
        """What an ended session leaves to the next turn: prompt and answer, or what was read of a prompt whose client left.

        None where there is nothing that a next turn could use. room: whether that number of KV rows can be had beside the
        session's own; else its slabs are kept as large as they are.
        """
        slab = session.cache
        if not isinstance(slab, KVSlab) or not slab.length:
            return None
        draft = session.draft_cache
        if draft is not None and draft.slab is not None:
            draft.slab.crop(draft.agreed)
            draft.ahead.clear()
        if slab.capacity > slab.length + SLACK and room(slab.length):
            slab = slab.copy(slab.length, slab.length)
            if draft is not None and draft.slab is not None:
                draft.slab = draft.slab.copy(draft.agreed, draft.agreed)
        prompt, answer = session.request.prompt_ids, session.answer.tokens
        if not answer:
            prompt = prompt[: session.progress.observed]
        kind = session.generation.drafter_kind
        return Prefix((*prompt, *answer), len(prompt), slab, draft, session.drafter, kind)

    @staticmethod
    def of_prompt(session: Session) -> Prefix | None:
        """The prompt that a session shares with the other choices; None where they would have to read it all the same."""
        prompt, slab = session.request.prompt_ids, session.cache
        if session.request.group is None or not isinstance(slab, KVSlab) or not 1 <= len(prompt) - 1 <= slab.length:
            return None
        progress = session.progress
        return Prefix(prompt, len(prompt), slab, session.draft_cache, learnt=progress.learnt_rows, scores=progress.scores)

    @property
    def rows(self) -> int:
        """KV rows that it occupies, of target and draft model alike."""
        return 0 if self.slab is None else self.slab.capacity

    @property
    def nbytes(self) -> int:
        """Bytes that it occupies: KV of target and draft model, and the drafter."""
        draft = None if self.draft_cache is None else self.draft_cache.slab
        drafter = 0 if self.drafter is None else self.drafter.nbytes
        return sum(slab.nbytes for slab in (self.slab, draft) if slab is not None) + drafter

    def without_rows(self) -> Prefix | None:
        """What is left where the KV rows are needed for others: the drafter of a conversation."""
        return None if self.drafter is None else replace(self, slab=None, draft_cache=None)


def least_bytes(session: Session) -> int:
    """What it takes at least to keep a session's state; 0 where there is none."""
    slab = session.cache
    if not isinstance(slab, KVSlab) or not slab.capacity:
        return 0
    return slab.nbytes * slab.length // slab.capacity + session.drafter.nbytes


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts begin with in common."""
    n = min(len(first), len(second))
    differ = np.flatnonzero(np.asarray(first[:n]) != np.asarray(second[:n]))
    return int(differ[0]) if differ.size else n
