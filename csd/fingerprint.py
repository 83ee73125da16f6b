"""The fingerprint of a table of divergences: target, draft source, vocabulary and schema."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

SCHEMA = 1


def fingerprint(target: str, draft_source: str, vocabulary: Mapping[str, int] | Iterable[tuple[int, str]]) -> str:
    """32 hex digits that change with any of the parts, so that counts are only used for the models they were made with.

    target: the target's identity. draft_source: a draft model's identity or a drafter's name. vocabulary: string to id, or
    pairs (id, string); their order does not matter.
    """
    parts = (str(SCHEMA), target, draft_source, vocabulary_hash(vocabulary))
    return hashlib.sha256(b"".join(map(_framed, parts))).hexdigest()[:32]


def vocabulary_hash(vocabulary: Mapping[str, int] | Iterable[tuple[int, str]]) -> str:
    """SHA-256 of the ids and their strings, by id."""
    if isinstance(vocabulary, Mapping):
        pairs = sorted((token, text) for text, token in vocabulary.items())
    else:
        pairs = sorted(vocabulary)
    return hashlib.sha256(b"".join(b"%d " % token + _framed(text) for token, text in pairs)).hexdigest()


def _framed(text: str) -> bytes:
    """The text with its length before it, so that different lists of parts never join to the same bytes."""
    data = text.encode("utf-8", "surrogatepass")
    return b"%d:" % len(data) + data
