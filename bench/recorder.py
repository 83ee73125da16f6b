"""What the engine's steps cost: an observer that adds up the step records of one answer."""

from __future__ import annotations

from app.engine.events import PHASES, EndReason, StepRecord


class Recorder:
    """Sums since the last `reset`. Written on the worker thread, read after the answer has finished."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.phase_seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.nodes: dict[int, tuple[int, float]] = {}  # nodes verified in a step -> (steps, seconds of their forwards)

    def step(self, record: StepRecord) -> None:
        for phase, seconds in record.phase_seconds.items():
            self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + seconds
        steps, seconds = self.nodes.get(record.nodes, (0, 0.0))
        self.nodes[record.nodes] = steps + 1, seconds + record.phase_seconds.get("forward", 0.0)

    def prefilled(self, tokens: int) -> None:
        pass

    def first_token(self, seconds: float) -> None:
        pass

    def inter_token(self, seconds: float, tokens: int) -> None:
        pass

    def finished(self, reason: EndReason, seconds: float, prompt_tokens: int, completion_tokens: int) -> None:
        pass
