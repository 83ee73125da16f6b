"""What one request of a load test came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Speculation:
    """Counts of the reply's `metrics.speculative_decoding`."""

    steps: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Times are seconds from when it was due: for a closed loop that is when it was sent.

    request: its number among those of one way, so that equal numbers asked the same. pause: the longest between two pieces
    of text. error: its kind, with what the server said; all else but e2e is then without meaning.
    """

    request: int
    question: str
    way: str
    block: int
    due: float  # seconds since the run began
    e2e: float
    ttft: float = 0.0
    decode: float = 0.0  # from the first text to the last
    pause: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    speculation: Speculation | None = None
    digest: str = ""  # of the text
    error: str | None = None
    said: str | None = None

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for an answer of one token."""
        return self.decode / (self.completion_tokens - 1) if self.completion_tokens > 1 else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
