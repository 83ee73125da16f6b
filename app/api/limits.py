"""How much a body may hold, counted before anything in it is looked at: what is refused here costs next to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.api.errors import bad_value
from app.engine.errors import ContextLengthExceeded

MAX_MESSAGES = 4096


def check_counts(data: Mapping[str, Any], max_context: int) -> None:
    """Raises ApiError 400 for too many messages, ContextLengthExceeded for a prompt of more ids than any answer leaves room.

    The fields of an object are counted by RequestModel, at every level.
    """
    messages, prompt = data.get("messages"), data.get("prompt")
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise bad_value(f"`messages` may hold at most {MAX_MESSAGES} messages.", "messages")
    if not isinstance(prompt, list) or not prompt:
        return
    if isinstance(prompt[0], int):
        longest = len(prompt)
    else:
        longest = max((len(ids) for ids in prompt if isinstance(ids, list)), default=0)
    if longest >= max_context:
        raise ContextLengthExceeded(longest, None, max_context)
