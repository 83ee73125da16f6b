"""A conversation as the terminal leads it: messages, commands and counts, without any input or output."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

Message = dict[str, Any]
ON_OFF = {"on": True, "off": False}

HELP = """\
/help               this list
/clear              forget the conversation; the system message stays
/system TEXT        set the system message; without TEXT show it, with - remove it
/plain on|off       plain decoding (drafter none) for the next answers
/settings           show the settings; /settings NAME VALUE changes one
/stats              counts of all answers so far
/quit               end (Ctrl-D does too); Ctrl-C stops an answer, not the program"""


class Quit(Exception):
    """The user wants to end."""


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How answers are made; a name of a field is what /settings takes."""

    max_tokens: int = 1024
    temperature: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What is asked of a model: all messages, the last one the user's. conversation: see GenerationRequest."""

    messages: tuple[Message, ...]
    settings: AnswerSettings
    plain: bool
    conversation: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that one token added. source: as in SOURCE_NAMES. thought: it is no part of the answer proper."""

    text: str
    source: str
    rescued: bool = False
    thought: bool = False


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The end of an answer. cached_tokens: of the prompt, read in an earlier turn."""

    reason: str
    tokens: int
    steps: int
    accepted: int
    prompt_tokens: int
    cached_tokens: int
    drafter: str
    sources: dict[str, int]
    rescues: int = 0


@dataclass(slots=True)
class Totals:
    """Sums over the answers of one run."""

    answers: int = 0
    tokens: int = 0
    steps: int = 0
    accepted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    rescues: int = 0
    seconds: float = 0.0
    sources: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: TurnEnd, seconds: float) -> None:
        self.answers += 1
        self.seconds += seconds
        for name in ("tokens", "steps", "accepted", "prompt_tokens", "cached_tokens", "rescues"):
            setattr(self, name, getattr(self, name) + getattr(outcome, name))
        self.sources.update(outcome.sources)

    def __str__(self) -> str:
        by_source = ", ".join(f"{count} {source}" for source, count in self.sources.items() if count)
        return (
            f"{self.answers} answers, {self.tokens} tokens in {self.seconds:.1f} s ({rate(self.tokens, self.seconds)}), "
            f"MAT {mean_accepted(self.steps, self.accepted):.2f}\n"
            f"tokens by source: {by_source or 'none'}; {self.rescues} rescued\n"
            f"{self.prompt_tokens} prompt tokens, {self.cached_tokens} of them read in an earlier turn"
        )


class Dialogue:
    """The messages so far, and the commands that begin with a slash."""

    def __init__(self, settings: AnswerSettings, system: str | None = None, *, plain: bool = False) -> None:
        self.settings = settings
        self.system = system
        self.plain = plain
        self.totals = Totals()
        self._history: list[Message] = []
        self._name = secrets.token_hex(8)

    def turn(self, text: str) -> Turn:
        """The next question; it joins the history with its answer."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages = (*system, *self._history, {"role": "user", "content": text})
        return Turn(messages, self.settings, self.plain, self._name)

    def answered(self, text: str, answer: str, outcome: TurnEnd, seconds: float) -> str:
        """Take in an answer, whole or stopped, and say in one line what it took. One without a word leaves no trace."""
        if answer:
            self._history += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        self.totals.add(outcome, seconds)
        reused = f", {outcome.cached_tokens} of {outcome.prompt_tokens} prompt tokens kept" if outcome.cached_tokens else ""
        rescued = f", {outcome.rescues} rescued" if outcome.rescues else ""
        mean = mean_accepted(outcome.steps, outcome.accepted)
        return (
            f"{outcome.tokens} tokens, {rate(outcome.tokens, seconds)}, MAT {mean:.2f}"
            f"{rescued}{reused}, drafter {outcome.drafter}, ended by {outcome.reason}"
        )

    def command(self, line: str) -> str:
        """Do what a line that begins with a slash says; returns what to show. Raises Quit."""
        name, _, rest = line[1:].partition(" ")
        commands: dict[str, Callable[[str], str]] = {
            "help": lambda _: HELP,
            "clear": self._clear,
            "system": self._set_system,
            "plain": self._set_plain,
            "settings": self._set,
            "stats": lambda _: str(self.totals),
            "quit": self._quit,
        }
        if name not in commands:
            return "There is no such command; /help lists them."
        return commands[name](rest.strip())

    def _clear(self, _: str) -> str:
        self._history.clear()
        self._name = secrets.token_hex(8)
        return "The conversation is forgotten."

    def _set_system(self, text: str) -> str:
        if text:
            self.system = None if text == "-" else text
        return f"system: {self.system}" if self.system is not None else "No system message."

    def _set_plain(self, text: str) -> str:
        if text and text not in ON_OFF:
            return "/plain takes on or off."
        self.plain = ON_OFF[text] if text else not self.plain
        return "Answers are decoded plainly." if self.plain else "Answers are drafted."

    def _set(self, text: str) -> str:
        if not text:
            values = {name: getattr(self.settings, name) for name in AnswerSettings.__slots__} | {"plain": self.plain}
            return "\n".join(f"{name} = {value}" for name, value in values.items())
        name, _, value = text.partition(" ")
        try:
            self.settings = changed(self.settings, name, value.strip())
        except ValueError as error:
            return str(error)
        return f"{name} = {getattr(self.settings, name)}"

    @staticmethod
    def _quit(_: str) -> str:
        raise Quit


def changed(settings: AnswerSettings, name: str, value: str) -> AnswerSettings:
    """The settings with one value, given as text. Raises ValueError, which says what the setting takes."""
    try:
        if name == "max_tokens" and int(value) >= 1:
            return replace(settings, max_tokens=int(value))
        if name == "temperature" and 0.0 <= float(value) <= 2.0:
            return replace(settings, temperature=float(value))
        if name == "seed":
            return replace(settings, seed=None if value == "none" else int(value))
    except ValueError:
        pass
    takes = {"max_tokens": "a number of at least 1", "temperature": "a number from 0 to 2", "seed": "a whole number, or none"}
    raise ValueError(f"{name} takes {takes[name]}." if name in takes else f"The settings are {', '.join(takes)}.")


def rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds if seconds > 0 else 0.0:.1f} tokens/s"


def mean_accepted(steps: int, accepted: int) -> float:
    """MAT: tokens that verify steps emitted over verify steps; 1.0 where none ran."""
    return (accepted + steps) / steps if steps else 1.0
