"""Chat messages: what clients send, and the plain dicts a chat template takes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from app.api.request_model import (
    CALL_IGNORED,
    FUNCTION_IGNORED,
    MESSAGE_IGNORED,
    MESSAGE_NO_EFFECT,
    PART_IGNORED,
    RequestModel,
)
from app.api.validation import refused

NO_TEXT = ("refusal", "reasoning", "thinking", "redacted_thinking")  # parts of an earlier answer that are not text


def join_parts(value: Any) -> Any:
    """The text of a message's content: a string as it is, or the text parts of a list, joined."""
    if not isinstance(value, list):
        return value
    texts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict):
            raise refused("must be an object", str(index))
        if part.get("type") in NO_TEXT:
            continue
        if part.get("type") != "text":
            raise refused("must be 'text': this server takes no other parts", f"{index}.type")
        if not isinstance(part.get("text"), str):
            raise refused("must be a string", f"{index}.text")
        if any(value is not None for name, value in part.items() if name not in {"type", "text"} | PART_IGNORED):
            raise refused("has a field this server does not know", str(index))
        texts.append(part["text"])
    return "".join(texts)


Content = Annotated[
    str,
    BeforeValidator(join_parts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {"type": "object", "properties": {"type": {"const": "text"}, "text": {"type": "string"}}},
                },
            ]
        }
    ),
]


class FunctionCall(RequestModel):
    ignored = FUNCTION_IGNORED

    name: str
    arguments: str = Field("", description="JSON text")


class ToolCall(RequestModel):
    """A call that an earlier answer made."""

    ignored = CALL_IGNORED

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(RequestModel):
    """One turn. Content may be null, and missing for an assistant: both count as empty."""

    ignored = MESSAGE_IGNORED
    no_effect = MESSAGE_NO_EFFECT

    role: Literal["system", "user", "assistant", "tool", "developer"]
    content: Content
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = Field(None, description="Assistant only")
    tool_call_id: str | None = Field(None, description="Tool only")
    reasoning_content: Annotated[str | None, BeforeValidator(lambda value: value if isinstance(value, str) else None)] = Field(
        None, description="Thoughts of an earlier answer, for chat templates that take them"
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_content(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("content") is None and ("content" in data or data.get("role") == "assistant"):
            return {**data, "content": ""}
        return data

    @model_validator(mode="after")
    def _fits_role(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise refused("goes with the role assistant only", "tool_calls")
        if self.tool_call_id is not None and self.role != "tool":
            raise refused("goes with the role tool only", "tool_call_id")
        return self

    def for_template(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True, exclude=None if self.role == "assistant" else {"reasoning_content"})


# fail_fast: only the first fault is reported, so the rest need not be found
Messages = Annotated[list[Message], Field(fail_fast=True)]
