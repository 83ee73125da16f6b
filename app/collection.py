"""How often Python looks for garbage: seldom while a process starts, since what a start makes stays."""

from __future__ import annotations

import gc

_USUAL = gc.get_threshold()
_SELDOM = (100_000, 20, 100)


def seldom() -> None:
    """For imports and loading, of whose time the usual collections are a quarter."""
    gc.set_threshold(*_SELDOM)


def as_usual() -> None:
    """Once a process is ready. What is there stays: no collection need walk through it while requests wait."""
    gc.set_threshold(*_USUAL)
    gc.freeze()
