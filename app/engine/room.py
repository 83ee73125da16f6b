"""The rows of KV: what running sessions have reserved, and what is kept for later as long as it is in nobody's way."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from app.engine.conversations import Conversations
from app.engine.prompts import Kept, PromptReader, least_bytes
from app.engine.session import Session, Stage
from app.engine.siblings import ReadPrompt, ReadPrompts, read_by_sibling, siblings
from racer.drafter import Drafter

logger = logging.getLogger(__name__)


class Room:
    """Opens sessions, and keeps of ended ones what a next turn or a sibling can go on with. Used by the worker thread alone,
    and by who ends it.

    reserved: rows of the running sessions. Conversations and prompts have what is left, conversations give way first.
    """

    def __init__(self, reader: PromptReader, conversations: Conversations, kv_tokens: int) -> None:
        """kv_tokens: rows of KV that running sessions, kept conversations and prompts kept for siblings may occupy together."""
        self.kv_tokens = kv_tokens
        self.reserved = 0
        self.conversations = conversations
        self.prompts = ReadPrompts()
        self._reader = reader

    @property
    def free(self) -> int:
        """Rows that nothing occupies."""
        return self.kv_tokens - self.reserved - self.conversations.rows - self.prompts.rows

    def has(self, session: Session) -> bool:
        """Whether a session's reservation fits beside those of the running ones."""
        return self.reserved + session.reserved <= self.kv_tokens

    def open(self, session: Session, drafter: Drafter, running: Iterable[Session]) -> None:
        """Open a session whose rows are reserved, with what a turn before it or a sibling has read of its prompt."""
        request, kept = session.request, None
        if request.conversation is not None:
            kept = self.conversations.take(request.tenant, request.conversation)
        read = None if request.group is None else self.prompts.take(request.group)
        # what is copied from is there until it is copied, and what becomes the session's own is reserved already
        beside = 0 if kept is None or (read is None and self._reader.fits(kept, session)) else kept.rows
        if read is not None and not self._reader.fits(read, session):
            beside += read.slab.capacity
        if not self._make(beside):
            read = None
            if kept is not None:
                kept.drop_cache()
            self._make()
        self._reader.open(session, drafter, kept, read)
        if kept is not None and session.drafter is kept.drafter:
            session.evictions = kept.drafter.state.evictions
        if session.prefilled == 0:
            self.copy_prompt(session, running)

    def copy_prompt(self, session: Session, running: Iterable[Session]) -> None:
        """Take over the prompt from a running sibling that has read it."""
        read = read_by_sibling(session, running)
        if read is not None:
            self._reader.copy(read, session)

    def keep_conversation(self, session: Session) -> None:
        """Put aside what the next turn of a conversation can go on with."""
        request = session.request
        if request.conversation is None or session.stage not in (Stage.PREFILL, Stage.DECODE):
            return
        if not self.conversations.takes(least_bytes(session)):
            return  # nothing gives way for what would be dropped
        try:
            kept = Kept.of(session, self._make)
        except Exception:
            logger.exception("the state of a conversation could not be kept")
            return
        if kept is not None:
            self.conversations.keep(request.tenant, request.conversation, kept)

    def keep_prompt(self, session: Session, running: Iterable[Session], waiting: Sequence[Session]) -> None:
        """Put aside the prompt that siblings in the queue would have to read again, where no running one has it."""
        read = ReadPrompt.of(session)
        if read is None or session.request.conversation is not None or read_by_sibling(session, running) is not None:
            return
        if siblings(session, waiting):
            self.prompts.keep(read)

    def clear(self) -> None:
        """Keep nothing any longer."""
        self.conversations.clear()
        self.prompts.clear()

    def _make(self, beside: int = 0) -> bool:
        """Let what is kept give way to the running sessions and so many rows of KV beside them; False if these never fit."""
        wanted = self.reserved + beside
        if beside and wanted > self.kv_tokens:
            return False
        self.conversations.make_room(max(0, wanted + self.conversations.rows + self.prompts.rows - self.kv_tokens))
        self.prompts.make_room(max(0, wanted + self.prompts.rows - self.kv_tokens))
        return True
