"""The directory where models are kept between starts, and how files come into it whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.engine.errors import ModelLoadError

_SCRATCH_PREFIX = ".partial-"
_ABANDONED_AFTER = 6 * 3600.0  # seconds: scratch older than this belongs to a process that died


def cache_directory(cache_dir: Path | str | None = None) -> Path:
    """Where models are kept: the argument, RACER_CACHE_DIR, $XDG_CACHE_HOME/racer-csd or ~/.cache/racer-csd, in this order."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    if chosen := os.environ.get("RACER_CACHE_DIR"):
        return Path(chosen).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "racer-csd"
    try:
        return Path.home() / ".cache" / "racer-csd"
    except RuntimeError:  # a uid without a home directory
        return Path(tempfile.gettempdir()) / "racer-csd"


def cache_error(path: Path, error: OSError) -> ModelLoadError:
    """What to do about an operating system error at a path of the cache."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelLoadError(f"The disk is full: {path} could not be written. Free some space or set RACER_CACHE_DIR.")
    who = f"uid {os.getuid()}" if hasattr(os, "getuid") else "this user"
    return ModelLoadError(
        f"The model cache {path} cannot be used by {who}: {error.strerror or type(error).__name__}. "
        "Set RACER_CACHE_DIR to a directory that this user can write, or give the path of a local model directory."
    )


@contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """A new directory inside `parent` to prepare files in; what is left of it goes at the end.

    Raises ModelLoadError, for operating system errors inside the block too.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=parent))
    except OSError as error:
        raise cache_error(parent, error) from error
    try:
        yield scratch
    except OSError as error:
        raise cache_error(parent, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def publish(prepared: Path, target: Path) -> None:
    """Move a prepared file or directory to its place in one step. Where another process was faster, its result stays."""
    try:
        prepared.replace(target)
    except OSError:
        if not target.is_dir():
            raise


def _sweep(parent: Path) -> None:
    for left in parent.glob(f"{_SCRATCH_PREFIX}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_AFTER:
                shutil.rmtree(left, ignore_errors=True)
