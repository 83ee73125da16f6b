"""Bearer keys: who may ask, and which tenant a request belongs to."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/metrics", "/docs", "/openapi.json"})
OPEN_PREFIX = "/web/"  # files of the playground


def is_open(path: str) -> bool:
    """Whether a path needs no key."""
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)


class KeyRing:
    """The keys of one server; without any, everybody may ask."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def tenant(self, authorization: bytes | None) -> str | None:
        """The tenant of an Authorization header: a digest of the key, "" on an open server, None for a wrong key."""
        if not self._keys:
            return ""
        scheme, _, given = (authorization or b"").partition(b" ")
        given = given.strip()
        # every key is compared, so that the time taken tells nothing about which one came close
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        if scheme.lower() != b"bearer" or not any(matches):
            return None
        return hashlib.sha256(given).hexdigest()[:16]
