"""The prompt of a completion: a string, a list of strings, token ids, or a list of lists of token ids."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from app.api.validation import refused

MAX_PROMPTS = 64  # per request; each takes a place of its own in the queue

Prompt = str | tuple[int, ...]


def parse_prompts(value: Any) -> tuple[Prompt, ...]:
    """One entry per choice, in input order. Whether ids exist in the vocabulary is checked where the model is known."""
    if isinstance(value, str):
        return (_not_empty(value),)
    if not isinstance(value, list):
        raise refused("must be a string, a list of strings, token ids, or a list of lists of token ids")
    _not_empty(value)
    if isinstance(value[0], int):
        return (_ids(value),)
    if len(value) > MAX_PROMPTS:
        raise refused(f"may hold at most {MAX_PROMPTS} prompts")
    if all(isinstance(item, str) for item in value):
        return tuple(_not_empty(item) for item in value)
    if all(isinstance(item, list) for item in value):
        return tuple(_ids(_not_empty(item)) for item in value)
    raise refused("must be a string, a list of strings, token ids, or a list of lists of token ids")


def _not_empty(value: Any) -> Any:
    if not value:
        raise refused("is empty: a prompt needs at least one token")
    return value


def _ids(value: list[Any]) -> tuple[int, ...]:
    if not all(type(item) is int and item >= 0 for item in value):  # a bool is an int to Python, not to JSON
        raise refused("must hold token ids: integers from 0 up, and nothing else")
    return tuple(value)


_STRINGS = {"type": "array", "items": {"type": "string"}}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
Prompts = Annotated[
    tuple[Prompt, ...],
    PlainValidator(parse_prompts),
    WithJsonSchema({"anyOf": [{"type": "string"}, _STRINGS, _IDS, {"type": "array", "items": _IDS}]}),
]
