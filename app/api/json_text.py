"""Replies as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

SLICE = 256  # entries of a list that are written in one call into C, during which no other thread runs
DEPTH = 4  # of the lists of tokens in a reply: choices, choice, logprobs, content
# JSON allows them as they are, but some readers of event streams take them for line breaks.
LINE_BREAKS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def dump(body: dict[str, Any]) -> bytes:
    """JSON on one line, by any reader's definition of a line break."""
    return _text(body).encode()


def dump_large(body: dict[str, Any]) -> bytes:
    """The same bytes, written in many short steps, so that other threads can run in between."""
    return b"".join(part.encode() for part in _parts(body, 0))


def _text(value: Any) -> str:
    text = _ENCODER.encode(value)
    if not text.isascii():
        for character, escape in LINE_BREAKS.items():
            text = text.replace(character, escape)
    return text


def _parts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, dict) and value and depth < DEPTH:
        before = "{"
        for name, member in value.items():
            yield f"{before}{_text(name)}:"
            yield from _parts(member, depth + 1)
            before = ","
        yield "}"
    elif isinstance(value, list) and value:
        before = "["
        inner = depth < DEPTH and isinstance(value[0], dict) and len(value) <= SLICE
        for start in range(0, len(value), 1 if inner else SLICE):
            yield before
            if inner:
                yield from _parts(value[start], depth + 1)
            else:
                yield _text(value[start : start + SLICE])[1:-1]
            before = ","
        yield "]"
    else:
        yield _text(value)
