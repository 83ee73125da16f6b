"""Types of request fields that need a parser of their own: prompt, stop, logit_bias, session_id, chat_template_kwargs."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from app.api.errors import bad_value
from app.api.validation import refused

MAX_PROMPTS = 64  # per request; each takes its own place in the queue
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024  # characters
MAX_BIASES = 1024
MAX_TEMPLATE_OPTIONS = 32
SESSION_HEADER = "X-Session-Id"

Prompt = str | tuple[int, ...]


def parse_prompts(value: Any) -> tuple[Prompt, ...]:
    """The prompts in input order. Whether ids are in the vocabulary is checked later, where the model is known."""
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


def parse_stops(value: Any) -> Any:
    """One string or a list -> tuple. An empty string would stop every answer before it starts, so it is refused."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise refused("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise refused(f"may hold at most {MAX_STOPS} strings")
    for index, stop in enumerate(stops):
        at = "" if isinstance(value, str) else str(index)
        if not isinstance(stop, str):
            raise refused("must be a string", at)
        if not stop:
            raise refused("must not be empty", at)
        if len(stop) > MAX_STOP_LENGTH:
            raise refused(f"may be at most {MAX_STOP_LENGTH} characters long", at)
    return tuple(stops)


_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
Stops = Annotated[
    tuple[str, ...],
    BeforeValidator(parse_stops),
    WithJsonSchema({"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}]}),
]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]


def parse_bias(value: Any) -> Any:
    """{"token id": bias} -> ((id, bias), ...), ids in ascending order."""
    if not isinstance(value, dict):
        raise refused("must be an object of token ids and biases")
    if len(value) > MAX_BIASES:
        raise refused(f"may hold at most {MAX_BIASES} token ids")
    found: dict[int, float] = {}
    for key, bias in value.items():
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10):
            raise refused("must have token ids as keys")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise refused("must have biases from -100 to 100")
        found[int(key)] = float(bias)
    return tuple(sorted(found.items()))


LogitBias = Annotated[
    tuple[tuple[int, float], ...],
    PlainValidator(parse_bias),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}),
]

_SESSION_RULE = "must be 1 to 128 printable ASCII characters without a space"
_SESSION_ID = r"^[\x21-\x7e]{1,128}$"
_SESSION = re.compile(_SESSION_ID)


def _check_session(value: Any) -> Any:
    if isinstance(value, str) and _SESSION.fullmatch(value) is None:
        raise refused(_SESSION_RULE)
    return value


SessionId = Annotated[str, Field(pattern=_SESSION_ID), BeforeValidator(_check_session)]


def conversation_name(in_body: str | None, in_header: str | None) -> str | None:
    """The session id of a request, None without one. Raises ApiError 400."""
    if in_header is None:
        return in_body
    if _SESSION.fullmatch(in_header) is None:
        raise bad_value(f"The header {SESSION_HEADER} {_SESSION_RULE}.", "session_id")
    if in_body is not None and in_body != in_header:
        raise bad_value(f"`session_id` and the header {SESSION_HEADER} differ; send one of them.", "session_id")
    return in_header


# The server or the template's environment sets these; a request that did so would break the prompt or change its meaning.
RESERVED_OPTIONS = frozenset(
    {
        "add_generation_prompt",
        "additional_special_tokens",
        "bos_token",
        "chat_template",
        "cls_token",
        "continue_final_message",
        "conversation",
        "eos_token",
        "mask_token",
        "max_length",
        "messages",
        "pad_token",
        "padding",
        "raise_exception",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sep_token",
        "strftime_now",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
        "unk_token",
    }
)


def parse_options(value: Any) -> dict[str, Any]:
    """Variables for the chat template: name -> any JSON."""
    if not isinstance(value, dict):
        raise refused("must be an object of template variables")
    if len(value) > MAX_TEMPLATE_OPTIONS:
        raise refused(f"may hold at most {MAX_TEMPLATE_OPTIONS} variables")
    for name in value:
        if name in RESERVED_OPTIONS:
            raise refused("may not be set: the server does", name)
        if not name.isidentifier() or len(name) > 64:
            raise refused("must have names of template variables as keys")
    return value


TemplateOptions = Annotated[dict[str, Any], PlainValidator(parse_options), WithJsonSchema({"type": "object"})]
