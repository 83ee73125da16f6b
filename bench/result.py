"""A result: what one mode did on one turn of one question."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Measurement:
    """One answer and its cost. What transformers' `generate` does not tell is None or empty.

    tokens: ids of the answer. seconds: the whole call, prefill included. decode_seconds: from the first token on.
    steps: verify steps; step_tokens: tokens they emitted. phase_seconds: sums over the steps. nodes: number of nodes verified
    in a step -> (steps, seconds of their forwards). peak_bytes: the highest memory of process or device during the call.
    """

    tokens: tuple[int, ...]
    seconds: float
    decode_seconds: float
    steps: int
    step_tokens: int
    drafted: int | None = None
    histogram: tuple[int, ...] = ()
    sources: dict[str, int] | None = None
    phase_seconds: dict[str, float] | None = None
    nodes: dict[int, tuple[int, float]] | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A measurement with its place. place: how manieth of the modes it ran on this turn, from 0."""

    question: str
    category: str
    turn: int
    mode: str
    place: int
    prompt_tokens: int
    measured: Measurement

    @property
    def key(self) -> tuple[str, int, str]:
        return self.question, self.turn, self.mode

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(entry: dict[str, Any]) -> Result:
        """Raises KeyError, TypeError or ValueError for what `to_json` did not write."""
        raw = dict(entry["measured"])
        raw["tokens"] = tuple(raw["tokens"])
        raw["histogram"] = tuple(raw["histogram"])
        if raw["nodes"] is not None:
            raw["nodes"] = {int(nodes): (int(steps), float(time)) for nodes, (steps, time) in raw["nodes"].items()}
        return Result(**{**entry, "measured": Measurement(**raw)})
