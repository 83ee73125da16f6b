"""The name of a conversation, from the body or from a header that load balancers can hash on."""

from __future__ import annotations

import re

from app.api.errors import bad_value

SESSION_HEADER = "X-Session-Id"
SESSION_ID = r"^[\x21-\x7e]{1,128}$"
_VALID = re.compile(SESSION_ID)


def conversation_name(in_body: str | None, in_header: str | None) -> str | None:
    """None where the request belongs to no conversation. Raises ApiError 400."""
    if in_header is None:
        return in_body
    if _VALID.fullmatch(in_header) is None:
        raise bad_value(f"The header {SESSION_HEADER} must hold 1 to 128 printable ASCII characters, no space.", "session_id")
    if in_body is not None and in_body != in_header:
        raise bad_value(f"`session_id` and the header {SESSION_HEADER} differ; send one of them.", "session_id")
    return in_header
