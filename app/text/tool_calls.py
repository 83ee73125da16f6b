"""Tool calls in the formats that models write them in: found in a text that arrives in pieces."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from app.text.errors import ChatTemplateError

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MISTRAL = "[TOOL_CALLS]"
# Marks of templates whose calls are not JSON objects with a name: they would go by unseen.
UNKNOWN_MARKS = ("<function=", "[ARGS]", "<arg_key>", "<|channel|>", "<｜tool▁call", "<|tool_calls_section_begin|>")


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse)  # NaN and Infinity are not JSON


@dataclass(frozen=True, slots=True)
class ToolCall:
    """arguments: the text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a model writes its calls.

    style: tagged, each call between <tool_call> tags; listed, all in one JSON array; bare, one JSON object. marks: control
    tokens around the calls, which no text shows (token ids, None where there is none). separator: before the array.
    """

    style: Literal["tagged", "listed", "bare"]
    arguments: Literal["arguments", "parameters"] = "arguments"
    marks: tuple[int | None, int | None] = (None, None)
    separator: str = ""
    short_ids: bool = False  # the template takes back only ids of nine letters and digits


def call_format(template: str, control_id: Callable[[str], int | None]) -> CallFormat:
    """The format that a template with tools asks for.

    control_id: the id of the control token of a name, None where there is none.
    Raises ChatTemplateError for a format that is known to be another.
    """
    if any(mark in template for mark in UNKNOWN_MARKS):
        raise ChatTemplateError("This model writes tool calls in a format that this server does not read.", "tools")
    if OPEN in template:
        return CallFormat("tagged", marks=(control_id(OPEN), control_id(CLOSE)))
    if MISTRAL in template:
        separator = " " if f"{MISTRAL} [" in template else ""
        return CallFormat("listed", marks=(control_id(MISTRAL), None), separator=separator, short_ids="length 9" in template)
    if '"parameters"' in template and '"arguments"' not in template:
        return CallFormat("bare", "parameters")
    return CallFormat("bare")


class CallParser:
    """Tells the calls in one answer from its content. What may still become part of a call is not let out as content."""

    def __init__(self, form: CallFormat, names: frozenset[str], limit: int | None = None) -> None:
        """names: of the tools there are; what calls another one is content. limit: calls to keep; later ones are dropped."""
        # tags that are control tokens are not in the text: what is left are bare objects
        self._tagged = form.style == "tagged" and form.marks[0] is None
        self._names = names
        self._limit = limit
        self._held = ""
        self._inside = False
        self._plain = False  # the answer began as something else than a bare call
        self._calls: list[ToolCall] = []

    def push(self, text: str) -> str:
        """The content that is certain by now and was not returned before."""
        self._held += text
        if not self._plain:
            # models that are told to write tags leave them out now and then, so a bare call is read in each format
            begun = self._held.lstrip()
            self._plain = bool(begun) and (begun[0] not in "{[" or (self._tagged and OPEN in begun))
        return self._certain() if self._plain else ""

    def end(self) -> tuple[str, list[ToolCall]]:
        """The rest of the content, and the calls in the order they were made."""
        calls = None if self._plain else _calls_in(self._held, self._names)
        shown = self._certain() if calls is None else ""
        if self._inside:  # a model may end its answer instead of closing the last tag
            calls = _calls_in(self._held.removeprefix(OPEN), self._names)
        rest = self._held if calls is None else ""
        self._calls += calls or []
        if self._calls and not rest.strip():
            rest = ""
        self._held = ""
        return shown + rest, self._calls[: self._limit]

    def _certain(self) -> str:
        if self._tagged:
            return self._push_tagged()
        text, self._held = self._held, ""
        return text

    def _push_tagged(self) -> str:
        shown: list[str] = []
        while True:
            if self._inside:
                end = self._held.find(CLOSE)
                if end < 0:
                    return "".join(shown)
                whole, self._held = self._held[: end + len(CLOSE)], self._held[end + len(CLOSE) :]
                self._inside = False
                calls = _calls_in(whole[len(OPEN) : -len(CLOSE)], self._names)
                if calls is None:
                    shown.append(whole)
                self._calls += calls or []
                continue
            start = self._held.find(OPEN)
            keep = start if start >= 0 else len(self._held) - _held_back(self._held)
            text = self._held[:keep]
            self._held = self._held[keep:]
            self._inside = start >= 0
            if self._inside:
                text = text.rstrip()  # the line breaks around a call are no content
            shown.append(text.lstrip() if self._calls else text)
            if not self._inside:
                return "".join(shown)


def _held_back(text: str) -> int:
    """How many characters at the end may be white space before an opening tag, or the beginning of one."""
    tag = next(length for length in range(min(len(OPEN) - 1, len(text)), -1, -1) if text.endswith(OPEN[:length]))
    body = text[: len(text) - tag]
    return tag + len(body) - len(body.rstrip())


def _calls_in(text: str, names: frozenset[str]) -> list[ToolCall] | None:
    """The calls that a text consists of: objects and arrays of objects, one after the other. None: it is not calls alone."""
    values: list[Any] = []
    place = 0
    while True:
        while place < len(text) and (text[place].isspace() or text[place] in ";,"):
            place += 1
        if place == len(text):
            break
        try:
            value, place = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            return None
        values += value if isinstance(value, list) else [value]
    calls = [_call(value, names) for value in values]
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else None


def _call(value: Any, names: frozenset[str]) -> ToolCall | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or value["name"] not in names:
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = _DECODER.decode(arguments)
        except (ValueError, RecursionError):
            return None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        return None
    return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))
