"""Request bodies: size and type are checked before parsing, and long JSON is parsed off the event loop."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, NamedTuple, NoReturn, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from app.api.errors import ApiError, bad_value
from app.api.limits import Limits, check_items, check_messages, check_prompt
from app.api.request_model import RequestModel
from app.api.service import Service
from app.api.text_work import SHORT
from app.api.validation import validate
from app.settings import Settings
from app.text.surrogates import lone_surrogate

Model = TypeVar("Model", bound=RequestModel)

MAX_PATH = 12  # parts of a path in an error
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


async def read_body(request: Request, model: type[Model], service: Service) -> Model:
    """The validated body of a request to generate; a long one is parsed on a thread.

    Raises ContextLengthExceeded and ApiError: 400 (JSON, values), 429 (too much waits to be parsed), and those of read_json.
    """
    raw = await read_json(request, service)
    limits = service.limits(service.ready_engine())
    if len(raw) <= SHORT:
        return parse(raw, model, limits)
    return await service.text.run("generate", lambda: parse(raw, model, limits), tenant=request.state.tenant, size=len(raw))


async def read_json(request: Request, service: Service) -> bytes:
    """The raw body. Sets `request.state.body_bytes` to its size.

    Raises ApiError: 408 (too slow), 413 (too large), 415 (not JSON).
    """
    check_type(request, "application/json")
    raw = await read_raw(request, service.settings.max_body_bytes, service.settings)
    request.state.body_bytes = len(raw)
    return raw


def parse(raw: bytes, model: type[Model], limits: Limits | None) -> Model:
    """Bytes -> request. limits: of its prompt, for one that generates. Raises ApiError 400, ContextLengthExceeded."""
    check_items(raw)
    try:
        text = raw.decode("utf-8-sig")
        data = json.loads(text, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise bad_value("The body is not valid UTF-8.", code="invalid_json") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise bad_value(f"The body is not valid JSON: {error.msg} ({place}).", code="invalid_json") from None
    except (ValueError, RecursionError):  # NaN, integers of thousands of digits, absurd nesting
        raise bad_value("The body is not valid JSON: a number or its nesting is out of bounds.", code="invalid_json") from None
    if not isinstance(data, dict):
        raise bad_value("The body must be a JSON object.", code="invalid_json")
    check_messages(data)
    if limits is not None:
        check_prompt(data, limits)
    if _SURROGATE_ESCAPE.search(text):
        _refuse_lone_surrogates(data)
    return validate(model, data)


def check_type(request: Request, *kinds: str) -> None:
    """Raises ApiError 415 unless the body has one of these media types.

    A web page can make a browser send other types, or none, to any server without a CORS preflight.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in kinds:
        raise ApiError(415, f"The body must say its type: send 'Content-Type: {kinds[0]}'.", code="unsupported_media_type")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise ApiError(415, "Compressed request bodies are not supported.", code="unsupported_media_type")


async def read_raw(request: Request, max_bytes: int, settings: Settings) -> bytes:
    """The raw body. Raises ApiError 408 (too slow), 413 (too large), and 400 where the client left."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    seconds = min(settings.body_timeout, settings.request_timeout or settings.body_timeout)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise _too_large(max_bytes)
    except TimeoutError:
        message = f"The body did not arrive within {seconds:g} seconds."
        raise ApiError(408, message, kind="timeout_error", code="request_timeout") from None
    except ClientDisconnect:
        raise bad_value("The body is incomplete.", code="invalid_json") from None  # the client is gone and will not read this
    return bytes(body)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"The body is larger than the {max_bytes} bytes this server takes.", code="body_too_large")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _refuse_lone_surrogates(data: dict[str, Any]) -> None:
    """Raises ApiError 400 for a lone surrogate: it can be neither tokenised nor sent back."""
    stack: list[tuple[_Place, Any]] = [(_Place(), data)]
    while stack:
        place, value = stack.pop()
        if isinstance(value, str):
            if lone_surrogate(value):
                raise bad_value("A string holds a lone surrogate, which is not a character.", place.path())
        elif isinstance(value, list):
            held = ((index, item) for index, item in enumerate(value) if isinstance(item, str | list | dict))
            stack.extend((_Place(str(index), place), item) for index, item in held)
        elif isinstance(value, dict):
            if any(map(lone_surrogate, value)):
                raise bad_value("The name of a field holds a lone surrogate, which is not a character.", place.path())
            members = ((key, item) for key, item in value.items() if isinstance(item, str | list | dict))
            stack.extend((_Place(key, place), item) for key, item in members)


class _Place(NamedTuple):
    """The path to a value, as a linked list: only the path of a fault is ever written out."""

    name: str = ""
    above: _Place | None = None

    def path(self) -> str | None:
        """Dotted, up to MAX_PATH parts. Names that do not look like fields are the user's text and are left out."""
        names = []
        place: _Place | None = self
        while place is not None:
            names.append(place.name)
            place = place.above
        parts = [
            name for name in reversed(names) if len(name) <= 40 and name.isascii() and (name.isidentifier() or name.isdigit())
        ]
        return ".".join(parts[:MAX_PATH]) or None
