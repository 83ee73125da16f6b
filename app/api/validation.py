"""Validation errors of pydantic as one API error that names the field and never repeats the user's input."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from app.api.errors import ApiError, bad_value

Model = TypeVar("Model", bound=BaseModel)
REFUSED = "refused"  # error type of our own validators: their text is shown unchanged
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")

_TEXTS = {
    "missing": "is required",
    "extra_forbidden": "is not a field this server knows",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
# error type -> (text around the bound, name of the bound in pydantic's context)
_BOUNDS = {
    "greater_than": ("must be greater than {}", "gt"),
    "greater_than_equal": ("must be at least {}", "ge"),
    "less_than": ("must be less than {}", "lt"),
    "less_than_equal": ("must be at most {}", "le"),
    "literal_error": ("must be {}", "expected"),
    "string_too_short": ("must be at least {} characters long", "min_length"),
    "string_too_long": ("must be at most {} characters long", "max_length"),
    "too_short": ("must have at least {} items", "min_length"),
    "too_long": ("must have at most {} items", "max_length"),
}


def refused(text: str, at: str = "") -> PydanticCustomError:
    """An error for validators to raise. text follows the field's name; at is the path from the field to the fault."""
    return PydanticCustomError(REFUSED, "{text}", {"text": text, "at": at})


def validate(model: type[Model], data: dict[str, Any]) -> Model:
    """data as a model. Raises ApiError 400 for the first fault."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise as_bad_value(error) from None


def as_bad_value(error: ValidationError) -> ApiError:
    """The first finding, as 400 with a dotted path."""
    first = error.errors(include_url=False, include_input=False)[0]
    context: Mapping[str, Any] = first.get("ctx", {})
    path = [*map(str, first["loc"]), *(part for part in str(context.get("at", "")).split(".") if part)]
    if first["type"] == "extra_forbidden" and not _NAME.fullmatch(path[-1]):
        return bad_value("The request has a field with a name that this server does not know.", ".".join(path[:-1]) or None)
    param = ".".join(path)
    field = f"`{param}`" if param else "The body"
    return bad_value(f"{field} {_text(first, context)}.", param or None)


def _text(detail: ErrorDetails, context: Mapping[str, Any]) -> str:
    kind = detail["type"]
    if kind == REFUSED:
        return str(context["text"])
    if kind in _BOUNDS:
        text, bound = _BOUNDS[kind]
        return text.format(context[bound]).replace(" 1 characters", " 1 character").replace(" 1 items", " 1 item")
    return _TEXTS.get(kind, "has a wrong value")
