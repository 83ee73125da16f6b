"""The rows of KV: what running sessions have reserved, and what is kept for later as long as it is in nobody's way."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from app.engine.forward.kv import KVSlab
from app.engine.prefill import Kept, PromptReader, least_bytes
from app.engine.prefix.conversations import Conversations
from app.engine.prefix.siblings import ReadPrompt, ReadPrompts, read_by_sibling, siblings
from app.engine.session import Session, Stage
from racer.drafter import Drafter

logger = logging.getLogger(__name__)


HEADROOM = 256  # tokens of an answer that a session has rows for when it begins, if it may get as long
GRAIN = 16  # tokens that it gets more rows for where memory is short


class Room:
    """Opens sessions, lets them grow, and keeps of ended ones what a next turn or a sibling can go on with. Used by the worker
    thread alone, and by who ends it.

    reserved: rows of the running sessions, those that are being copied twice. Conversations and prompts have what is left,
    conversations give way first.
    """

    def __init__(self, reader: PromptReader, conversations: Conversations, kv_tokens: int) -> None:
        """kv_tokens: rows of KV that running sessions, kept conversations and prompts kept for siblings may occupy together."""
        self.kv_tokens = kv_tokens
        self.headroom = HEADROOM
        self.reserved = 0
        self.conversations = conversations
        self.prompts = ReadPrompts()
        self._reader = reader

    @property
    def free(self) -> int:
        """Rows that nothing occupies."""
        return self.kv_tokens - self.reserved - self.conversations.rows - self.prompts.rows

    def has(self, session: Session) -> bool:
        """Whether a session can begin beside the running ones."""
        return self.reserved + self._opening(session) <= self.kv_tokens

    def hold(self, session: Session) -> None:
        """Reserve the rows that a session begins with."""
        self._hold(session, self._opening(session))

    def release(self, session: Session) -> None:
        self._hold(session, 0)

    def open(self, session: Session, drafter: Drafter, running: Iterable[Session]) -> None:
        """Open a session whose rows are reserved, with what a turn before it or a sibling has read of its prompt."""
        request = session.request
        kept = read = None
        if request.group is not None:
            read = self.prompts.take(request.group)
        if read is None and request.conversation is not None and session.drafter is None:
            kept = self.conversations.take(request.tenant, request.conversation)
        old = kept if read is None else read
        if old is not None and self._reader.fits(old, session):
            self._hold(session, old.rows)
            self._make()
        elif not self._make(0 if old is None else old.rows):  # it is there until it is copied
            old = read = None  # nothing else may hold it now
            if kept is not None:
                kept.drop_cache()
            self._make()
        self._reader.open(session, drafter, kept, read)
        if kept is not None and session.drafter is kept.drafter:
            session.evictions = kept.drafter.state.evictions
        if session.prefilled == 0:
            self.copy_prompt(session, running)

    def grow(self, session: Session) -> bool:
        """Rows for its next steps: half as many again, or a few where memory is short; False where these do not fit either.

        What it has is there until it is copied.
        """
        least = self._least(session)
        ample = min(session.most_rows, max(least, session.rows + session.rows // 2))
        before, copied = session.rows, isinstance(session.cache, KVSlab)
        for rows in (ample, least):
            beside = rows if copied else rows - before
            if self._make(beside):
                self._hold(session, before + beside)
                try:
                    self._reader.grow(session, rows)
                finally:
                    self._hold(session, before if session.cache is None else session.cache.capacity)
                return True
        return False

    def begin_again(self, session: Session, running: Iterable[Session]) -> bool:
        """Give a session that outgrew what can be copied new rows for its old ones, to read its text into; False where that
        does not fit yet, or where copying will do once others have made room.
        """
        if not isinstance(session.cache, KVSlab) or session.rows + self._least(session) <= self.kv_tokens:
            return False
        if self.reserved - session.rows + self._opening(session) > self.kv_tokens:
            return False
        assert session.drafter is not None
        session.give_rows_up()
        session.stage = Stage.PREFILL
        self.hold(session)
        self.open(session, session.drafter, running)
        return True

    @staticmethod
    def _least(session: Session) -> int:
        return min(session.most_rows, session.least_rows + GRAIN)

    def _opening(self, session: Session) -> int:
        return min(session.most_rows, session.least_rows + self.headroom)

    def _hold(self, session: Session, rows: int) -> None:
        self.reserved += rows - session.rows
        session.rows = rows

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
