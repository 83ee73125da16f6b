"""Splits a reasoning model's thoughts from its answer while the text arrives."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NamedTuple

from app.text.stops import unfinished_tag


class Tags(NamedTuple):
    """What a model writes around its thoughts."""

    opening: str
    closing: str


KNOWN_TAGS = (
    Tags("<think>", "</think>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
)


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Where an answer may think. begun: the prompt ends inside the thoughts, so the answer starts in them."""

    tags: Tags
    begun: bool = False

    def parser(self) -> ThoughtParser:
        return ThoughtParser(self)


def tags_of(template: str) -> Tags | None:
    """The tags in a chat template; None: the model has no thoughts."""
    return next((tags for tags in KNOWN_TAGS if tags.opening in template and tags.closing in template), None)


def thoughts_after(prompt: str, tags: Tags) -> Thoughts | None:
    """Where the answer to a rendered prompt may think; None: the prompt has already closed the thoughts."""
    end = prompt.rstrip()
    if end.endswith(tags.closing):
        return None
    return Thoughts(tags, begun=end.endswith(tags.opening))


class Split(NamedTuple):
    """A piece of an answer; its thoughts come before its content."""

    thought: str
    content: str


class ThoughtParser:
    """Splits one answer into thoughts and content. White space around the thoughts is dropped.

    Thoughts stand only at the beginning of an answer: a later tag is content.
    """

    def __init__(self, thoughts: Thoughts) -> None:
        self._tags = thoughts.tags
        self._held = ""  # text not returned yet: of the thoughts, or perhaps of the opening tag
        self._blanks: list[str] = []  # white space before it, in pieces: joining at every push would take quadratic time
        self._stage = "thoughts" if thoughts.begun else "start"
        self._spoken = False  # some thought was returned, so white space after it counts

    def push(self, text: str) -> Split:
        """The text that is certain by now and was not returned before."""
        if self._stage == "content":
            return Split("", text)
        if self._stage != "gap" and not self._held and text.isspace():
            self._blanks.append(text)
            return Split("", "")
        self._held = self._release() + text
        if self._stage == "start":
            begun = self._held.lstrip()
            if begun.startswith(self._tags.opening):
                self._stage, self._held = "thoughts", begun.removeprefix(self._tags.opening)
            elif self._tags.opening.startswith(begun):
                return Split("", "")
            else:
                self._stage = "content"
                return Split("", self._release())
        thought = self._thought() if self._stage == "thoughts" else ""
        if self._stage != "gap":
            return Split(thought, "")
        content = self._held = self._held.lstrip()
        if content:
            self._stage, self._held = "content", ""
        return Split(thought, content)

    def end(self) -> Split:
        """The rest. An unfinished closing tag belongs to the thoughts, an unfinished opening tag to the content."""
        rest = self._release()
        if self._stage == "thoughts":
            rest = rest.rstrip()
            return Split(rest if self._spoken else rest.lstrip(), "")
        return Split("", "" if self._stage == "gap" else rest)

    def _thought(self) -> str:
        """The thoughts that are certain; goes to the next stage where they end."""
        place = self._held.find(self._tags.closing)
        if place >= 0:
            thought, self._held = self._held[:place], self._held[place + len(self._tags.closing) :]
            self._stage = "gap"
            return thought.strip() if not self._spoken else thought.rstrip()
        if not self._spoken:
            self._held = self._held.lstrip()
        keep = len(self._held) - unfinished_tag(self._held, self._tags.closing)
        thought, rest = self._held[:keep], self._held[keep:]
        self._held, self._blanks = ("", [rest]) if rest.isspace() else (rest, [])
        self._spoken = self._spoken or bool(thought)
        return thought

    def _release(self) -> str:
        held = "".join(self._blanks) + self._held
        self._held, self._blanks = "", []
        return held


def thought_rules(thoughts: Thoughts) -> list[str]:
    """Lark rules: `begin`, for what comes before the answer, and NO_THOUGHTS, for texts without thoughts."""
    opening = rf"\s*{re.escape(thoughts.tags.opening)}(.|\n)*"
    inside = r"(.|\n)*" if thoughts.begun else opening
    return [
        f"thoughts[lazy]: /{inside}/ {json.dumps(thoughts.tags.closing)}",
        r"gap: /[ \n]{0,4}/",
        f"begin: {'thoughts gap' if thoughts.begun else '(thoughts gap)?'}",
        r"NO_THOUGHTS: /(.|\n)*/" + ("" if thoughts.begun else f" & ~/{opening}/"),
    ]
