"""Whether the model still works: the failures in a row after which the engine counts as broken."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from app.engine.errors import EngineError
from app.text.errors import GrammarError

logger = logging.getLogger(__name__)


def failure_of(action: Callable[[], object]) -> Exception | None:
    """Run it; returns what it raises, without the tensors that its frames hold, or None where all went well."""
    try:
        action()
    except Exception as error:
        release_frames(error)
        return error
    return None


def release_frames(error: BaseException) -> None:
    """Drop the local variables of the frames an exception came through; its traceback can still be printed."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__


def is_unexpected(error: Exception) -> bool:
    """Whether no request is to blame for it."""
    return not isinstance(error, EngineError | GrammarError)


class Failures:
    """Failures of the model since it last worked, those left out that are a request's own fault.

    The engine is broken after `most` of them in a row, or when the model cannot read one token after any of them.
    """

    def __init__(self, most: int, probe: Callable[[], None]) -> None:
        """probe: reads one token; raises if that fails."""
        self.most = most
        self.in_a_row = 0
        self._probe = probe
        self._unproved = False

    def add(self, error: Exception) -> None:
        if is_unexpected(error):
            self.in_a_row += 1
            self._unproved = True

    def clear(self) -> None:
        """The model has done what was asked of it."""
        self.in_a_row, self._unproved = 0, False

    @property
    def too_many(self) -> bool:
        return self.in_a_row >= self.most

    def broken(self) -> bool:
        """Whether to give up; asks the model itself after each failure. A probe that succeeds does not end the row."""
        if self._unproved and not self.too_many:
            self._unproved = False
            error = failure_of(self._probe)
            if error is not None:
                logger.critical("the model failed and cannot read one token any more", exc_info=error)
                return True
        if self.too_many:
            logger.critical("the model failed %d times in a row", self.in_a_row)
        return self.too_many
