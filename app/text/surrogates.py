"""Halves of surrogate pairs, which JSON can spell and UTF-8 cannot."""

from __future__ import annotations

import json


def has_lone_surrogate(value: object) -> bool:
    """Whether a string anywhere in a parsed JSON value holds half of a surrogate pair: no tokenizer takes such a text."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
