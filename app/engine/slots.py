"""KV rows of the running sessions: who may begin and with what, how they grow, and what gives way to them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from app.engine.draft.model import DraftCache, DraftModel
from app.engine.forward.kv import KVSlab
from app.engine.forward.target import Target
from app.engine.generation import Generation
from app.engine.prefix.cache import PrefixCache
from app.engine.prefix.prefix import Prefix, common_length, least_bytes
from app.engine.prefix.siblings import are_siblings, read_by_sibling
from app.engine.sampling.logits_processor import LogitsProcessor
from app.engine.session import Session
from racer.drafter import Drafter

logger = logging.getLogger(__name__)

HEADROOM = 256  # tokens of an answer that a session has rows for when it begins, if it may get as long
GRAIN = 16  # tokens that it gets more rows for where memory is short


class Slots:
    """Opens a slot for each generation that runs, and keeps of ended ones what a later request can go on with.

    reserved: KV rows of the running sessions, those that are being copied twice. The prefix cache has what is left.
    Used by the worker thread alone, and by who ends it.
    """

    def __init__(
        self,
        target: Target,
        draft_model: DraftModel | None,
        new_drafter: Callable[[Generation], Drafter],
        prefixes: PrefixCache,
        *,
        vocab_size: int,
        kv_tokens: int,
    ) -> None:
        """kv_tokens: KV rows that running sessions and the prefix cache may occupy together."""
        self.new_drafter = new_drafter
        self.prefixes = prefixes
        self.kv_tokens = kv_tokens
        self.headroom = HEADROOM
        self.reserved = 0
        self._target = target
        self._draft_model = draft_model
        self._vocab_size = vocab_size

    # -- begin, grow, end ------------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """KV rows that nothing occupies."""
        return self.kv_tokens - self.reserved - self.prefixes.rows

    @property
    def device(self) -> torch.device:
        return self._target.device

    def fit(self, generation: Generation) -> bool:
        """Whether a generation can begin beside the running ones."""
        return self.reserved + self._opening(generation) <= self.kv_tokens

    def open(self, generation: Generation, running: Iterable[Session]) -> Session:
        """Reserve KV rows for a generation and begin it, with what an earlier turn or another choice has read of its prompt.

        The slabs of an earlier turn or choice become the session's own where they fit, else they are copied.
        """
        prefix = self.prefixes.take(generation.request, fresh=generation.suspended is None)
        rows, reused = self._opening(generation), None
        if prefix is not None and self._fits(prefix, generation):
            rows, reused = prefix.rows, prefix
        self.reserved += rows
        try:
            if reused is not None or prefix is None:
                self._make_room()
            elif not self._make_room(prefix.rows):  # they are there until they are copied
                prefix = prefix.without_rows()
                self._make_room()
            session = self._session(generation, rows, reused)
            if prefix is not None:
                self._take_over(session, prefix)
            if session.cache.length == 0:
                self.copy_prompt(session, running)
        except BaseException:
            self.reserved -= rows
            raise
        return session

    def grow(self, session: Session) -> bool:
        """Rows for its next steps: half as many again, or a few where memory is short; False where these do not fit either.

        The rows it has are there until they are copied.
        """
        most, least = session.generation.most_rows, self._least(session.generation)
        before, copied = session.rows, isinstance(session.cache, KVSlab)
        for rows in (min(most, max(least, before + before // 2)), least):
            beside = rows if copied else rows - before
            if self._make_room(beside):
                self.reserved += beside
                try:
                    self._resize(session, rows)
                finally:
                    session.rows = session.cache.capacity
                    self.reserved -= before + beside - session.rows
                return True
        return False

    def reopen(self, session: Session, running: Iterable[Session]) -> Session | None:
        """A new slot for a session that outgrew what can be copied, to read its text into; None where that does not fit yet, or
        where copying will do once others have made room.
        """
        generation = session.generation
        if not isinstance(session.cache, KVSlab) or session.rows + self._least(generation) <= self.kv_tokens:
            return None
        if self.reserved - session.rows + self._opening(generation) > self.kv_tokens:
            return None
        return self.open(self.suspend(session), running)

    def suspend(self, session: Session) -> Generation:
        """Take its KV rows from a session; its generation goes on later, in another session."""
        self.release(session)
        return session.suspend(self._target.open(0))

    def release(self, session: Session) -> None:
        """The session has ended."""
        self.reserved -= session.rows
        session.rows = 0

    # -- what was read before --------------------------------------------------------------------------------------------

    def copy_prompt(self, session: Session, running: Iterable[Session]) -> None:
        """Take over the prompt from another choice that runs and has read it."""
        prefix = read_by_sibling(session, running)
        if prefix is not None:
            self._take_over(session, prefix)

    def keep_conversation(self, session: Session) -> None:
        """Keep what the next turn of a conversation can go on with."""
        request = session.request
        if request.conversation is None or not self.prefixes.holds(least_bytes(session)):
            return  # nothing gives way for what would be dropped
        try:
            prefix = Prefix.of_conversation(session, self._make_room)
        except Exception:
            logger.exception("the state of a conversation could not be kept")
            return
        if prefix is not None:
            self.prefixes.keep_conversation(request.tenant, request.conversation, prefix)

    def keep_prompt(self, session: Session, running: Iterable[Session], waiting: Sequence[Generation]) -> None:
        """Keep the prompt that choices in the queue would have to read again, where no running one has it."""
        prefix = Prefix.of_prompt(session)
        if prefix is None or session.request.conversation is not None or read_by_sibling(session, running) is not None:
            return
        if any(are_siblings(session, other) for other in waiting):
            self.prefixes.keep_prompt(session.request.group, prefix)

    # -- inside ----------------------------------------------------------------------------------------------------------

    @staticmethod
    def _least(generation: Generation) -> int:
        return min(generation.most_rows, generation.least_rows + GRAIN)

    def _opening(self, generation: Generation) -> int:
        return min(generation.most_rows, generation.least_rows + self.headroom)

    def _make_room(self, beside: int = 0) -> bool:
        """Let the prefix cache give way to the running sessions and this many KV rows beside them; False if these never fit."""
        wanted = self.reserved + beside
        if beside and wanted > self.kv_tokens:
            return False
        self.prefixes.make_room(max(0, self.kv_tokens - wanted))
        return True

    def _fits(self, prefix: Prefix, generation: Generation) -> bool:
        """Whether the generation can have the slabs as its own: large enough for it, and not larger than it may ever need."""
        if prefix.slab is None or not _readable(prefix, generation):
            return False
        if not generation.least_rows <= prefix.rows <= generation.most_rows:
            return False
        slab = None if prefix.draft_cache is None else prefix.draft_cache.slab
        if slab is None or self._draft_model is None or not generation.asks_draft_model:
            return True
        return slab.capacity >= self._draft_model.capacity(prefix.rows)

    def _session(self, generation: Generation, rows: int, reused: Prefix | None) -> Session:
        """A session with this many KV rows, those of a prefix or new ones."""
        cache = self._target.open(rows) if reused is None or reused.slab is None else reused.slab
        slab = None if reused is None or reused.draft_cache is None else reused.draft_cache.slab
        held, request = generation.suspended, generation.request
        if held is not None:
            if self._draft_model is not None and held.draft_cache is not None:
                self._draft_model.reopen(held.draft_cache, rows, slab)
            generation.suspended = None
            return Session(generation, cache, held.drafter, held.draft_cache, held.processor, held.progress)
        draft_cache: DraftCache | None = None
        if self._draft_model is not None and generation.asks_draft_model:
            draft_cache = self._draft_model.open(request.prompt_ids, rows, slab)
        processor = None
        if LogitsProcessor.needed(request):
            processor = LogitsProcessor(request, generation.answer.ends, self._vocab_size, self._target.device)
        return Session(generation, cache, self.new_drafter(generation), draft_cache, processor)

    @staticmethod
    def _take_over(session: Session, prefix: Prefix) -> None:
        """Begin with what was read of the same text; the drafter of an earlier turn goes on where its prompt is still there."""
        prompt, progress = session.request.prompt_ids, session.progress
        if not isinstance(session.cache, KVSlab) or not _readable(prefix, session.generation):
            return
        common, rows = common_length(prefix.tokens, prompt), 0
        if prefix.slab is not None:
            rows = min(common, prefix.slab.length, len(prompt) - 1)  # the last token is always read, for what comes after it
            session.cache.load(prefix.slab, rows)
        if prefix.drafter is not None:
            session.generation.cached_tokens = rows
        if (
            prefix.drafter is not None
            and common >= prefix.prompt_length
            and prefix.drafter_kind == session.generation.drafter_kind
        ):
            session.drafter, progress.observed = prefix.drafter, common
            session.evictions = prefix.drafter.state.evictions
        elif progress.observed < rows:
            session.observe(0, np.asarray(prompt[:rows], np.int64))
        if session.draft_cache is not None and prefix.draft_cache is not None:
            session.draft_cache.take_over(prefix.draft_cache, rows)
        for learnt in prefix.learnt:
            session.learn(learnt)
        progress.learnt_rows, progress.scores = list(prefix.learnt), prefix.scores  # for those to come
        if not session.answer.tokens:
            progress.logprobs = list(prefix.scores)

    def _resize(self, session: Session, rows: int) -> None:
        """Give a session's caches room for this many rows."""
        cache = session.cache
        if isinstance(cache, KVSlab):
            session.cache = cache.copy(rows, cache.length)
        else:
            cache.capacity = rows
        if self._draft_model is not None and session.draft_cache is not None:
            self._draft_model.grow(session.draft_cache, rows)


def _readable(prefix: Prefix, generation: Generation) -> bool:
    """Whether its rows may be taken over: where each prompt token is to be scored, each is read, or has its score already."""
    return not generation.request.prompt_logprobs or bool(prefix.scores)
