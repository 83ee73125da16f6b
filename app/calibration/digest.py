"""What tells one data file from another, wherever it lies."""

from __future__ import annotations

import hashlib
from pathlib import Path


def content_digest(path: Path) -> str:
    """16 hex digits of the content. Raises OSError."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def named_digest(path: Path) -> str:
    """The same with the file's name, by which questions and texts are known. Raises OSError."""
    return f"{path.name} sha256:{content_digest(path)}"
