"""Splits the generated text of a chat into thoughts, content and tool calls while it arrives."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.text.thoughts import Split, Thoughts
from app.text.tool_calls import CallFormat, CallParser, ParsedCall

_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class ToolCallOptions:
    """How to find the tool calls in the answers of one request. limit: calls per answer at most."""

    format: CallFormat
    names: frozenset[str]
    limit: int | None

    def parser(self) -> CallParser:
        return CallParser(self.format, self.names, self.limit)

    def as_reply(self, calls: Sequence[ParsedCall]) -> list[dict[str, Any]]:
        """The `tool_calls` of a reply, each with a new id."""
        return [
            {"id": self._new_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]

    def _new_id(self) -> str:
        if self.format.short_ids:
            return "".join(secrets.choice(_LETTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class ParserOptions:
    """How to split an answer. calls: None: calls are plain text. thoughts: None: everything is content.

    show_thoughts: whether the client wants to see thoughts.
    """

    calls: ToolCallOptions | None = None
    thoughts: Thoughts | None = None
    show_thoughts: bool = True

    def without_thoughts(self) -> ParserOptions:
        """The same, but thoughts stay in the content."""
        return replace(self, thoughts=None)

    def parser(self) -> OutputParser:
        return OutputParser(self)


class OutputParser:
    """Splits one answer as it arrives. calls: complete once the answer has ended."""

    def __init__(self, options: ParserOptions) -> None:
        self._options = options
        self._thoughts = None if options.thoughts is None else options.thoughts.parser()
        self._calls = None if options.calls is None else options.calls.parser()
        self.calls: list[dict[str, Any]] = []

    @property
    def thinks(self) -> bool:
        """Whether thoughts are split from the content and shown."""
        return self._thoughts is not None and self._options.show_thoughts

    def push(self, text: str, *, ends: bool) -> Split:
        """The thoughts and the content that this text makes certain. ends: it is the last text."""
        thought, content = ("", text) if self._thoughts is None else self._thoughts.push(text)
        if ends and self._thoughts is not None:
            last = self._thoughts.end()
            thought, content = thought + last.thought, content + last.content
        if self._calls is not None and self._options.calls is not None:
            content = self._calls.push(content)
            if ends:
                rest, calls = self._calls.end()
                self.calls = self._options.calls.as_reply(calls)
                content += rest
        return Split(thought if self._options.show_thoughts else "", content)
