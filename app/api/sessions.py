"""The name of a conversation, from the body or from a header that load balancers can hash on."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from app.api.errors import bad_value
from app.api.validation import refused

SESSION_HEADER = "X-Session-Id"
RULE = "must be 1 to 128 printable ASCII characters without a space"
_SESSION_ID = r"^[\x21-\x7e]{1,128}$"
_VALID = re.compile(_SESSION_ID)


def _check(value: Any) -> Any:
    if isinstance(value, str) and _VALID.fullmatch(value) is None:
        raise refused(RULE)
    return value


SessionId = Annotated[str, Field(pattern=_SESSION_ID), BeforeValidator(_check)]


def conversation_name(in_body: str | None, in_header: str | None) -> str | None:
    """None where the request belongs to no conversation. Raises ApiError 400."""
    if in_header is None:
        return in_body
    if _VALID.fullmatch(in_header) is None:
        raise bad_value(f"The header {SESSION_HEADER} {RULE}.", "session_id")
    if in_body is not None and in_body != in_header:
        raise bad_value(f"`session_id` and the header {SESSION_HEADER} differ; send one of them.", "session_id")
    return in_header
