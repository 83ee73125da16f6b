"""The one line that is logged when loading a model is interrupted: nothing else was printed by then."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


@contextmanager
def report_interruption(name: str) -> Iterator[None]:
    """Log and re-raise a KeyboardInterrupt of the block, which loads the model `name`. Of nested blocks only one logs it."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not hasattr(interrupt, "reported"):
            logger.warning(stopped_while_loading(name))
            interrupt.reported = True  # type: ignore[attr-defined]
        raise


def stopped_while_loading(name: str) -> str:
    return f"stopped while {name} was being loaded"
