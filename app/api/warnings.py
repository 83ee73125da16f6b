"""What a reply says about a request that was answered, but not to the letter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_DROPPED = {
    "format": "The schema names a `format` of strings that this server does not know; it was not kept to. Use `pattern`.",
    "uniqueItems": "The schema asks for `uniqueItems`; it was not kept to.",
}


def warning(message: str, param: str, code: str) -> dict[str, Any]:
    """An entry of `warnings`. message must not hold the user's text; param is a dotted path into the request."""
    return {"message": message, "param": param, "code": code}


def schema_warnings(dropped: Iterable[tuple[str, frozenset[str]]]) -> list[dict[str, Any]]:
    """One warning for each keyword that is not kept to, by the path of its schema."""
    return [warning(_DROPPED[name], path, "schema_keyword_ignored") for path, names in dropped for name in sorted(names)]


def dropped_warning(count: int, param: str) -> list[dict[str, Any]]:
    """For a prompt with characters that the model's vocabulary cannot spell; none for none."""
    if not count:
        return []
    what = "1 character" if count == 1 else f"{count} characters"
    message = f"The model's vocabulary cannot spell {what} of the prompt; the model read the rest."
    return [warning(message, param, "dropped_characters")]
