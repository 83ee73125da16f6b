"""API keys: which requests are allowed, and which tenant they belong to."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from app.settings import OpenRoute, read_key_file

logger = logging.getLogger(__name__)

OPEN_PATHS: dict[OpenRoute, tuple[str, ...]] = {
    "health": ("/health",),
    "ready": ("/ready",),
    "metrics": ("/metrics",),
    "docs": ("/docs", "/openapi.json"),
    "page": ("/",),
}

# A page's files need no key where the page itself needs none.
OPEN_PREFIXES = {"/web/": "/", "/docs/": "/docs"}


def is_open(path: str, paths: frozenset[str]) -> bool:
    """Whether a path needs no key: one of `paths`, or a file of a page among them."""
    return path in paths or any(path.startswith(prefix) and page in paths for prefix, page in OPEN_PREFIXES.items())


def open_paths(routes: Iterable[OpenRoute]) -> frozenset[str]:
    """The paths that are answered without a key."""
    return frozenset(path for route in routes for path in OPEN_PATHS[route])


class KeyRing:
    """The keys of one server; without any, every request is allowed. Event loop only, except for `refresh`."""

    def __init__(self, keys: Sequence[str], file: Path | None = None) -> None:
        """file: more keys, see read_key_file. Raises OSError and ValueError if it cannot be used."""
        self._given = tuple(map(_digest, map(str.encode, keys)))
        self._file = file
        self._stamp: tuple[int, int, int] | None = None
        self._digests = self._given
        self._trouble = ""
        if file is not None:
            self._read(file)

    @property
    def open(self) -> bool:
        """Whether no key is needed."""
        return not self._digests

    def tenant(self, authorization: bytes | None) -> str | None:
        """The tenant of an Authorization header: a digest of the key, "" on an open server, None for a wrong key."""
        if self.open:
            return ""
        scheme, _, given = (authorization or b"").partition(b" ")
        digest = _digest(given.strip())
        # compare all digests, each in constant time: the duration reveals nothing about the keys
        matches = [hmac.compare_digest(digest, key) for key in self._digests]
        if scheme.lower() != b"bearer" or not any(matches):
            return None
        return digest.hex()[:16]

    def refresh(self) -> None:
        """Read the file again if it changed; blocks. If the file is missing, empty or unreadable, the keys stay."""
        if self._file is None:
            return
        try:
            if _stamp(self._file) != self._stamp:
                self._read(self._file)
                logger.info("the API keys were read again: %d", len(self._digests))
            self._trouble = ""
        except (OSError, ValueError) as error:
            trouble = error.strerror if isinstance(error, OSError) else str(error)
            if trouble != self._trouble:  # log each problem once
                logger.error("the API keys stay as they are: %s: %s", self._file, trouble)
            self._trouble = trouble or ""

    def _read(self, file: Path) -> None:
        stamp = _stamp(file)  # taken before reading: a later change is noticed at the next check
        keys = read_key_file(file)
        self._digests = (*self._given, *map(_digest, map(str.encode, keys)))
        self._stamp = stamp


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _stamp(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino
