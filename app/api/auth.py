"""Bearer keys: who may ask, and which tenant a request belongs to."""

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

# The files of a page are open where it is.
OPEN_PREFIXES = {"/web/": "/", "/docs/": "/docs"}


def is_open(path: str, paths: frozenset[str]) -> bool:
    """Whether a path is answered without a key, where `paths` are."""
    return path in paths or any(path.startswith(prefix) and page in paths for prefix, page in OPEN_PREFIXES.items())


def open_paths(routes: Iterable[OpenRoute]) -> frozenset[str]:
    """The paths that are answered without a key."""
    return frozenset(path for route in routes for path in OPEN_PATHS[route])


class KeyRing:
    """The keys of one server; without any, everybody may ask. Used on the event loop, but for `refresh`."""

    def __init__(self, keys: Sequence[str], file: Path | None = None) -> None:
        """file: one with more keys, see read_key_file. Raises OSError and ValueError where it cannot be used."""
        self._given = tuple(map(_digest, map(str.encode, keys)))
        self._file = file
        self._stamp: tuple[int, int, int] | None = None
        self._digests = self._given
        self._trouble = ""
        if file is not None:
            self._read(file)

    @property
    def open(self) -> bool:
        """Whether everybody may ask."""
        return not self._digests

    def tenant(self, authorization: bytes | None) -> str | None:
        """The tenant of an Authorization header: a digest of the key, "" on an open server, None for a wrong key."""
        if self.open:
            return ""
        scheme, _, given = (authorization or b"").partition(b" ")
        digest = _digest(given.strip())
        # digests of one length, and every one compared: the time taken tells nothing about which key came close
        matches = [hmac.compare_digest(digest, key) for key in self._digests]
        if scheme.lower() != b"bearer" or not any(matches):
            return None
        return digest.hex()[:16]

    def refresh(self) -> None:
        """Read the file again if it changed; blocks. A file that is gone, empty or unreadable leaves the keys as they are."""
        if self._file is None:
            return
        try:
            if _stamp(self._file) != self._stamp:
                self._read(self._file)
                logger.info("the API keys were read again: %d", len(self._digests))
            self._trouble = ""
        except (OSError, ValueError) as error:
            trouble = error.strerror if isinstance(error, OSError) else str(error)
            if trouble != self._trouble:  # once for each trouble, not every time
                logger.error("the API keys stay as they are: %s: %s", self._file, trouble)
            self._trouble = trouble or ""

    def _read(self, file: Path) -> None:
        stamp = _stamp(file)  # before the keys: a change in between is seen the next time
        keys = read_key_file(file)
        self._digests = (*self._given, *map(_digest, map(str.encode, keys)))
        self._stamp = stamp


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _stamp(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino
