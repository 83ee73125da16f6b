"""The directory where models are kept between starts. Files appear in it complete or not at all; damage to them is noticed."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.engine.errors import ModelLoadError
from csd.files import PARTIAL, move, sync, sync_tree

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_HASHED_UP_TO = 1 << 26  # bytes; of larger files, the weights, only the size is checked: hashing them would slow each start
_BLOCK = 1 << 20  # bytes read at once
_ABANDONED_AFTER = 6 * 3600.0  # seconds: scratch older than this belongs to a process that died

_unfinished: set[Path] = set()  # scratch directories of this process


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
    """A new directory inside `parent` to prepare files in; it is removed at the end.

    Raises ModelLoadError, for operating system errors inside the block too.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        scratch = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=parent))
    except OSError as error:
        raise cache_error(parent, error) from error
    _unfinished.add(scratch)
    try:
        yield scratch
    except OSError as error:
        raise cache_error(parent, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _unfinished.discard(scratch)


def drop_unfinished() -> None:
    """Remove what this process is preparing: called where the process ends without running `finally`."""
    for scratch in list(_unfinished):
        shutil.rmtree(scratch, ignore_errors=True)


def publish(prepared: Path, target: Path) -> None:
    """Write a prepared file or directory to the disk, then move it to its place in one step.

    Where another process was faster, its directory stays. Raises OSError.
    """
    sync_tree(prepared) if prepared.is_dir() else sync(prepared)
    try:
        move(prepared, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not target.is_dir():
            raise


def discard(path: Path) -> None:
    """Remove a damaged file or directory: its name is free in one step. What cannot be removed stays."""
    aside = path.with_name(f"{PARTIAL}{secrets.token_hex(6)}-{path.name}")
    with suppress(OSError):
        path.rename(aside)
        if aside.is_dir() and not aside.is_symlink():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink()


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Only one process at a time is inside this block for a directory, which is created if need be; the others wait.

    Where the file system has no locks nobody waits: the work is done twice, and `publish` keeps one result.
    Raises ModelLoadError.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = None if fcntl is None else os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise cache_error(directory, error) from error
    if descriptor is None:
        yield
        return
    try:
        _lock(descriptor, directory)
        yield
    finally:
        os.close(descriptor)  # which unlocks it


def sha256_of(path: Path) -> str:
    """The checksum of a file, as hex digits. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_manifest(directory: Path) -> None:
    """List the files of a directory, with sizes and checksums, in a manifest. Raises OSError."""
    files = {path.name: _facts(path) for path in sorted(directory.iterdir())}
    (directory / MANIFEST).write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")


def damage(directory: Path) -> str | None:
    """How a directory differs from its manifest; None: not at all. Raises ModelLoadError where it may not be read."""
    if not directory.is_dir():
        return "it is no directory"
    try:
        listed = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, facts in listed.items():
            if _facts(directory / name) != facts:
                return f"{name} is not as it was written"
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        return f"{Path(str(error.filename)).name} is missing"
    except OSError as error:
        raise cache_error(directory, error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} cannot be read"
    return None


def _facts(path: Path) -> list[int | str | None]:
    size = path.stat().st_size
    return [size, sha256_of(path) if size <= _HASHED_UP_TO else None]


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("another process prepares a model in %s: waiting for it", directory)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        logger.debug("%s cannot be locked: %s", directory, error)


def _sweep(parent: Path) -> None:
    for left in parent.glob(f"{PARTIAL}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_AFTER:
                discard(left)
