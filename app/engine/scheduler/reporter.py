"""Tells an observer what the scheduler does; what the observer raises is logged once and goes no further."""

from __future__ import annotations

import logging
from collections.abc import Callable

from app.engine.events import EndReason, EngineObserver, StepRecord

logger = logging.getLogger(__name__)


class SafeObserver:
    """An EngineObserver that passes on to another, which may be exchanged at any time."""

    def __init__(self, observer: EngineObserver | None) -> None:
        self.observer = observer
        self._broken = False

    def step(self, record: StepRecord) -> None:
        self._tell(lambda observer: observer.step(record))

    def prefilled(self, tokens: int) -> None:
        self._tell(lambda observer: observer.prefilled(tokens))

    def first_token(self, seconds: float) -> None:
        self._tell(lambda observer: observer.first_token(seconds))

    def inter_token(self, seconds: float, tokens: int) -> None:
        self._tell(lambda observer: observer.inter_token(seconds, tokens))

    def finished(self, reason: EndReason, seconds: float, prompt_tokens: int, completion_tokens: int) -> None:
        self._tell(lambda observer: observer.finished(reason, seconds, prompt_tokens, completion_tokens))

    def _tell(self, what: Callable[[EngineObserver], None]) -> None:
        if self.observer is None:
            return
        try:
            what(self.observer)
        except Exception:
            if not self._broken:
                self._broken = True
                logger.exception("the observer failed; later failures are not logged")
