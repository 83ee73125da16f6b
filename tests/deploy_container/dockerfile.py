"""Reads the Dockerfile, so that tests follow the file and hold no copy of it."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of the file with its continuations joined: RUN, and what follows."""

    word: str
    text: str

    @property
    def arguments(self) -> list[str]:
        """The words of the exec form, or of a plain line."""
        return [str(word) for word in json.loads(self.text)] if self.text.startswith("[") else shlex.split(self.text)

    @property
    def options(self) -> dict[str, str]:
        """--from=build -> {"from": "build"}."""
        words = (word[2:].partition("=") for word in self.text.split() if word.startswith("--"))
        return {name: value for name, _, value in words}

    @property
    def paths(self) -> list[str]:
        return [word for word in self.arguments if not word.startswith("--")]


def stages(text: str) -> dict[str, list[Instruction]]:
    """Name of each stage -> its instructions without FROM; the last stage is "final". What stands before FROM is left out."""
    found: dict[str, list[Instruction]] = {}
    name = ""
    for instruction in _instructions(text):
        if instruction.word == "FROM":
            name = instruction.arguments[2] if len(instruction.arguments) == 3 else "final"
            found[name] = []
        elif name:
            found[name].append(instruction)
    return found


def _instructions(text: str) -> list[Instruction]:
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    pairs = (line.split(None, 1) for line in joined.splitlines() if line.strip())
    return [Instruction(word, rest.strip()) for word, rest in pairs]


def read() -> dict[str, list[Instruction]]:
    return stages((ROOT / "Dockerfile").read_text())


def environment(instructions: list[Instruction], path: str) -> dict[str, str]:
    """What the ENV lines set, on top of the base image's PATH."""
    values = {"PATH": path}
    for instruction in instructions:
        if instruction.word == "ENV":
            for pair in instruction.arguments:
                name, _, value = pair.partition("=")
                values[name] = re.sub(r"\$\{?(\w+)\}?", lambda match: values.get(match[1], ""), value)
    return values


def last(instructions: list[Instruction], word: str) -> Instruction:
    return [instruction for instruction in instructions if instruction.word == word][-1]
