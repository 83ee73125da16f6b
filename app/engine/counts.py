"""What one generation has counted of its verify steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.engine.events import SOURCE_NAMES


@dataclass(slots=True)
class Counts:
    """Verify steps, drafted and kept tokens of one generation."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    rescues: int = 0
    refused_by_gate: int = 0
    histogram: list[int] = field(default_factory=list)
    by_source: list[int] = field(default_factory=lambda: [0] * len(SOURCE_NAMES))

    def step(self, drafted: int, accepted: int) -> None:
        self.steps += 1
        self.drafted += drafted
        self.accepted += accepted
        self.histogram.extend([0] * (accepted + 1 - len(self.histogram)))
        self.histogram[accepted] += 1
