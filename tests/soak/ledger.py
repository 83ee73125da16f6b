"""What the clients of a soak saw, and what was wrong with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

SHOWN = 20  # problems that are kept in full


@dataclass(slots=True)
class Ledger:
    """Counts of all clients together; they share one event loop, so nothing is locked."""

    kinds: Counter[str] = field(default_factory=Counter)  # requests by kind of traffic
    answers: int = 0  # generations whose end the client saw
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dropped: int = 0  # generations whose client left: they may have ended in any way
    dropped_tokens: int = 0  # that those may have emitted at most
    refused: int = 0  # 429
    texts: dict[str, str] = field(default_factory=dict)  # the first answer to each request that has one right answer
    compared: int = 0  # answers compared with that and found equal
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0

    def answered(self, usage: dict[str, Any], generations: int = 1) -> None:
        self.answers += generations
        self.prompt_tokens += usage["prompt_tokens"]
        self.completion_tokens += usage["completion_tokens"]

    def left(self, max_tokens: int, generations: int = 1) -> None:
        self.dropped += generations
        self.dropped_tokens += max_tokens * generations

    def compare(self, key: str, text: str) -> None:
        """Equal requests have equal answers, whatever goes on around them."""
        if self.texts.setdefault(key, text) == text:
            self.compared += 1
        else:
            self.problem(f"request {key} was answered {text!r}, before that {self.texts[key]!r}")

    def problem(self, text: str) -> None:
        self.problem_count += 1
        if len(self.problems) < SHOWN:
            self.problems.append(text)

    def check(self, holds: bool, text: str) -> None:
        if not holds:
            self.problem(text)
