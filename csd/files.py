"""Files that are written whole: a reader finds the old one or the new one, after a power cut too."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial-"  # begins the name of what is still being written


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of `path` when the block ends well; otherwise nothing changes. Raises OSError."""
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
    """Replace a file. Raises OSError."""
    with replacing(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def move(source: Path, target: Path) -> None:
    """Rename a file or directory whose content is on the disk, and put the new name there too. Raises OSError."""
    source.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Bring a file, or the names in a directory, to the disk. Systems that cannot do it for a directory are let be."""
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
    """Bring everything below a directory to the disk. Raises OSError."""
    for root, _, names in os.walk(directory):
        for name in names:
            sync(Path(root) / name)
        sync(Path(root))
