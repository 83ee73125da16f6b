"""How the text of a chat's answers is told apart: thoughts, content, tool calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from app.api.tools import CallReader
from app.text.thoughts import Split, Thoughts


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """calls: how to read calls; None: they are text. thoughts: where an answer may think; None: all is content.

    show_thoughts: whether the client wants them.
    """

    calls: CallReader | None = None
    thoughts: Thoughts | None = None
    show_thoughts: bool = True

    def without_thoughts(self) -> AnswerFormat:
        """The same where thoughts stay in the content."""
        return replace(self, thoughts=None)

    def reader(self) -> AnswerReader:
        return AnswerReader(self)


class AnswerReader:
    """Tells one answer apart as it arrives. calls: complete once it has ended."""

    def __init__(self, reading: AnswerFormat) -> None:
        self._reading = reading
        self._thoughts = None if reading.thoughts is None else reading.thoughts.parser()
        self._calls = None if reading.calls is None else reading.calls.parser()
        self.calls: list[dict[str, Any]] = []

    @property
    def thinks(self) -> bool:
        """Whether thoughts are told from the content, and shown."""
        return self._thoughts is not None and self._reading.show_thoughts

    def read(self, text: str, *, ends: bool) -> Split:
        """The thoughts and the content that are certain by now. ends: nothing comes after this text."""
        thought, content = ("", text) if self._thoughts is None else self._thoughts.push(text)
        if ends and self._thoughts is not None:
            last = self._thoughts.end()
            thought, content = thought + last.thought, content + last.content
        if self._calls is not None and self._reading.calls is not None:
            content = self._calls.push(content)
            if ends:
                rest, calls = self._calls.end()
                self.calls = self._reading.calls.shown(calls)
                content += rest
        return Split(thought if self._reading.show_thoughts else "", content)
