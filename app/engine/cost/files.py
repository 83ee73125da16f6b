"""Files of measured values in the cache: whatever is wrong with one means measuring again, which is said once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from app.engine.models.cache import discard
from csd.files import replacing

logger = logging.getLogger(__name__)

_Kept = TypeVar("_Kept")


def read_kept(path: Path, read: Callable[[Path], _Kept]) -> _Kept | None:
    """What `read` makes of a file; None where there is none, or where it fails: then the file is removed."""
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file can provoke nearly any
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        logger.warning("%s cannot be used (%s: %s): measuring again", path, type(error).__name__, reason)
        discard(path)
        return None


def keep(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace a file by what `write` writes; a cache that cannot be written only means measuring again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            write(stream)
    except OSError as error:
        logger.warning("%s could not be kept: %s", path, error.strerror or type(error).__name__)
