"""A model's loading that is stopped from outside: said in one line, since until then nothing else was printed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


@contextmanager
def told(name: str) -> Iterator[None]:
    """Around the loading of a model, in the main thread. name: of the model. KeyboardInterrupt goes on, and is told once."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not hasattr(interrupt, "told"):
            logger.warning(stopped_while_loading(name))
            interrupt.told = True  # type: ignore[attr-defined]
        raise


def stopped_while_loading(name: str) -> str:
    return f"stopped while {name} was being loaded"
