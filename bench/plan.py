"""The plan: everything that decides what a benchmark run measures. Runs with equal plans continue each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.calibration.digest import named_digest
from bench.errors import BenchError
from bench.modes import Mode

VERSION = 2  # of the files in the output directory, and of how they are measured


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. limit None: all questions. threads None: as many as the machine has."""

    target: str
    data: tuple[Path, ...]
    modes: tuple[Mode, ...]
    draft: str | None = None
    max_tokens: int = 128
    limit: int | None = None
    dtype: str = "auto"
    device: str = "auto"
    seed: int = 0
    temperature: float = 0.0
    warm: bool = False  # the copy-logit table of a mode outlives a question
    turns: bool = False  # all turns of a question, not only the first
    threads: int | None = None
    prior_rows: int | None = None  # None: as many as the engine makes where nothing is said

    def __post_init__(self) -> None:
        lacking = [mode.name for mode in self.modes if mode.needs_draft] if self.draft is None else []
        if lacking:
            raise BenchError(f"mode {lacking[0]} needs a draft model: name it with --draft")

    def settings(self) -> dict[str, Any]:
        """The plan as JSON; data files by name and content, so that a moved file is still the same."""
        return {
            "version": VERSION,
            "target": self.target,
            "draft": self.draft,
            "data": [_digest(path) for path in self.data],
            "modes": [mode.name for mode in self.modes],
            "max_tokens": self.max_tokens,
            "limit": self.limit,
            "dtype": self.dtype,
            "device": self.device,
            "seed": self.seed,
            "temperature": self.temperature,
            "warm": self.warm,
            "turns": self.turns,
            "threads": self.threads,
            "prior_rows": self.prior_rows,
        }


def _digest(path: Path) -> str:
    try:
        return named_digest(path)
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from error
