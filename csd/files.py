"""Atomic file writes: a reader finds the old file or the new one, even after a power failure."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial-"  # prefix of the names of unfinished files


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content replaces `path` when the block ends without an exception. Raises OSError."""
    partial = path.with_name(f"{PARTIAL}{secrets.token_hex(6)}-{path.name}")
    try:
        with partial.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        move(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file atomically. Raises OSError."""
    with replacing(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def move(source: Path, target: Path) -> None:
    """Rename a file or directory whose content is synced, and sync the new name too. Raises OSError."""
    source.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Sync a file, or the names in a directory, to disk. Does nothing for a directory on systems that cannot sync one."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        if not path.is_dir():
            raise


def sync_tree(directory: Path) -> None:
    """Sync everything below a directory to disk. Raises OSError."""
    for root, _, names in os.walk(directory):
        for name in names:
            sync(Path(root) / name)
        sync(Path(root))
