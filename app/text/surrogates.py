"""Lone surrogates: halves of UTF-16 pairs that JSON can escape but UTF-8 cannot encode."""

from __future__ import annotations

import json


def lone_surrogate(text: str) -> str | None:
    """The first lone surrogate in a text, None without one."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return text[error.start]
    return None


def has_lone_surrogate(value: object) -> bool:
    """Whether a parsed JSON value holds one anywhere, in its strings or the names of its members."""
    return lone_surrogate(json.dumps(value, ensure_ascii=False)) is not None
