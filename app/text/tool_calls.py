"""Finds tool calls in text that arrives in pieces, in the formats that models write them in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from app.text.errors import ChatTemplateError
from app.text.stops import unfinished_tag

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MISTRAL = "[TOOL_CALLS]"
# Signs of templates whose calls are not JSON objects with a name, which would be missed.
UNKNOWN_MARKS = ("<function=", "[ARGS]", "<arg_key>", "<|channel|>", "<｜tool▁call", "<|tool_calls_section_begin|>")


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse)  # NaN and Infinity are not JSON


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """arguments: the text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a model writes its calls.

    style: tagged: each call between <tool_call> tags; listed: all in one JSON array; bare: one JSON object. marks: ids of the
    control tokens around the calls, None without one; they are not in the text. separator: before the array.
    """

    style: Literal["tagged", "listed", "bare"]
    arguments: Literal["arguments", "parameters"] = "arguments"
    marks: tuple[int | None, int | None] = (None, None)
    separator: str = ""
    short_ids: bool = False  # the template accepts only ids of nine letters and digits


def call_format(template: str, control_id: Callable[[str], int | None]) -> CallFormat:
    """The format that a template with tools uses. control_id: name of a control token -> its id, None without one.

    Raises ChatTemplateError for a format that is known but not supported.
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
    """Splits one answer into content and calls. Text that may still become part of a call is held back."""

    def __init__(self, form: CallFormat, names: frozenset[str], limit: int | None = None) -> None:
        """names: of the offered tools; a call of another one is content. limit: calls at most; later ones are dropped."""
        # tags that are control tokens are not in the text, so only bare objects are left
        self._tagged = form.style == "tagged" and form.marks[0] is None
        self._names = names
        self._limit = limit
        self._held: list[str] = []  # in pieces: joining at every push would take quadratic time
        self._tail = ""  # the end of the held text, where a tag may have begun
        self._inside = False
        self._plain = False  # the answer cannot be a bare call
        self._bare = False  # the answer may be a bare call
        self._calls: list[ParsedCall] = []

    def push(self, text: str) -> str:
        """The content that is certain by now and was not returned before."""
        if not self._plain:
            # models sometimes leave out the tags, so a bare call is accepted in every format
            begun = "" if self._bare else text.lstrip()[:1]
            self._bare = self._bare or (begun != "" and begun in "{[")
            self._plain = (begun != "" and not self._bare) or (self._tagged and OPEN in self._tail + text)
        if self._plain and not self._waits(text):
            return self._read(self._taken() + text)
        self._hold(text)
        return ""

    def end(self) -> tuple[str, list[ParsedCall]]:
        """The rest of the content, and the calls in order."""
        text = self._taken()
        calls = None if self._plain else _calls_in(text, self._names)
        shown = ""
        if calls is None:
            shown = self._read(text)
            text = self._taken()
        if self._inside:  # a model may end its answer instead of closing the last tag
            calls = _calls_in(text.removeprefix(OPEN), self._names)
        rest = text if calls is None else ""
        self._calls += calls or []
        if self._calls and not rest.strip():
            rest = ""
        return shown + rest, self._calls[: self._limit]

    def _hold(self, text: str) -> None:
        self._held.append(text)
        self._tail = (self._tail + text)[1 - len(CLOSE) :]

    def _taken(self) -> str:
        text = "".join(self._held)
        self._held.clear()
        self._tail = ""
        return text

    def _waits(self, text: str) -> bool:
        """Whether this text decides nothing about what is held back."""
        if self._inside:
            return CLOSE not in self._tail + text
        return self._tagged and text.isspace() and self._tail.isspace()

    def _read(self, text: str) -> str:
        """The content that is certain; the rest is held back."""
        if not self._tagged:
            return text
        shown: list[str] = []
        place = 0
        while True:
            if self._inside:
                end = text.find(CLOSE, place)
                if end < 0:
                    break
                whole = text[place : end + len(CLOSE)]
                place = end + len(CLOSE)
                self._inside = False
                calls = _calls_in(whole[len(OPEN) : -len(CLOSE)], self._names)
                if calls is None:
                    shown.append(whole)
                self._calls += calls or []
                continue
            start = text.find(OPEN, place)
            self._inside = start >= 0
            keep = start if self._inside else len(text) - unfinished_tag(text[place:], OPEN)
            part = text[place:keep]
            place = keep
            if self._inside:
                part = part.rstrip()  # the line breaks around a call are no content
            shown.append(part.lstrip() if self._calls else part)
            if not self._inside:
                break
        self._hold(text[place:])
        return "".join(shown)


def _calls_in(text: str, names: frozenset[str]) -> list[ParsedCall] | None:
    """The calls that a text consists of: JSON objects, or arrays of them. None: there is something else in it."""
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


def _call(value: Any, names: frozenset[str]) -> ParsedCall | None:
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
    return ParsedCall(value["name"], json.dumps(arguments, ensure_ascii=False))
