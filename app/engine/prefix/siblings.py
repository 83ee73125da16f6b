"""The choices of one prompt: the first reads it, the others take it over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.engine.generation import Generation
from app.engine.prefix.prefix import Prefix
from app.engine.session import Session


def are_siblings(one: Session | Generation, other: Session | Generation) -> bool:
    """Whether both are choices of one prompt."""
    return one is not other and one.request.group is not None and one.request.group is other.request.group


def siblings(session: Session, sessions: Iterable[Session]) -> list[Session]:
    """The other choices of its prompt, in order."""
    return [other for other in sessions if are_siblings(session, other)]


def awaits_sibling(session: Session, running: Sequence[Session]) -> bool:
    """Whether an earlier session of its group is reading the same prompt now."""
    if session.cache.length > 0:
        return False
    return any(not other.decoding for other in siblings(session, running[: running.index(session)]))


def read_by_sibling(session: Session, running: Iterable[Session]) -> Prefix | None:
    """The prompt, where a running sibling has it."""
    return next((prefix for prefix in map(Prefix.of_prompt, siblings(session, running)) if prefix is not None), None)
