"""The choices of one prompt: the first reads it, its siblings take it over, also those whose turn comes after it has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.engine.draft.model import DraftCache
from app.engine.events import TokenLogprob
from app.engine.forward.kv import KVSlab
from app.engine.prefix.learnt import LearntRows
from app.engine.session import Session, Stage


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """What a session has read of its prompt. slab: its first rows hold the prompt, but perhaps the last token."""

    group: object
    slab: KVSlab
    draft: DraftCache | None
    learnt: list[LearntRows]
    scores: list[TokenLogprob | None]

    @staticmethod
    def of(session: Session) -> ReadPrompt | None:
        """None where a sibling would have to read it all the same."""
        slab, rows = session.cache, len(session.request.prompt_ids) - 1
        if session.request.group is None or not isinstance(slab, KVSlab) or not 1 <= rows <= session.prefilled:
            return None
        return ReadPrompt(session.request.group, slab, session.draft, session.prompt_rows, session.prompt_scores)

    @property
    def rows(self) -> int:
        """Rows of KV that it occupies."""
        return self.slab.capacity

    def fits(self, session: Session) -> bool:
        """Whether the session can have the slab as its own."""
        return session.can_have(self.slab.capacity)


class ReadPrompts:
    """Prompts whose reader has ended while siblings wait for a place: one for each group. Used by the worker thread alone."""

    def __init__(self) -> None:
        self.rows = 0  # of KV
        self._kept: list[ReadPrompt] = []

    def take(self, group: object) -> ReadPrompt | None:
        """Remove and return what is kept for a group."""
        read = next((read for read in self._kept if read.group is group), None)
        if read is not None:
            self._drop(read)
        return read

    def keep(self, read: ReadPrompt) -> None:
        self._kept.append(read)
        self.rows += read.slab.capacity

    def make_room(self, rows: int) -> None:
        """Drop the oldest ones until they hold so many rows of KV less, or none is left; their siblings read again."""
        until = self.rows - rows
        while self._kept and self.rows > until:
            self._drop(self._kept[0])

    def retain(self, waiting: Iterable[Session]) -> None:
        """Drop those that no waiting session needs."""
        if self._kept:
            groups = {id(session.request.group) for session in waiting}
            for read in [read for read in self._kept if id(read.group) not in groups]:
                self._drop(read)

    def clear(self) -> None:
        self._kept.clear()
        self.rows = 0

    def _drop(self, read: ReadPrompt) -> None:
        self._kept.remove(read)
        self.rows -= read.slab.capacity


def siblings(session: Session, sessions: Iterable[Session]) -> list[Session]:
    """Others of its group, in order."""
    group = session.request.group
    return [other for other in sessions if group is not None and other.request.group is group and other is not session]


def awaits_sibling(session: Session, running: Sequence[Session]) -> bool:
    """Whether an earlier session of its group is reading the same prompt now."""
    if session.prefilled > 0:
        return False
    return any(other.stage is Stage.PREFILL for other in siblings(session, running[: running.index(session)]))


def read_by_sibling(session: Session, running: Iterable[Session]) -> ReadPrompt | None:
    """The prompt, where a running sibling has it."""
    return next((read for read in map(ReadPrompt.of, siblings(session, running)) if read is not None), None)
