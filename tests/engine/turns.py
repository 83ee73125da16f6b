"""What the tests of conversations, of choices and of the KV budget share."""

from __future__ import annotations

from app.engine.calls import Completion
from app.engine.engine import Engine
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams

PLAIN = SpeculationParams("none")
FIRST = tuple(range(10, 60))
GREEDY, SEEDED = SamplingParams(0.0), SamplingParams(0.8, seed=9)


class Counting:
    """An observer that counts the prompt tokens that were really read."""

    def __init__(self) -> None:
        self.read = 0

    def prefilled(self, tokens: int) -> None:
        self.read += tokens

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


def turn(
    engine: Engine,
    prompt: tuple[int, ...],
    name: str | None,
    *,
    speculation: SpeculationParams = PLAIN,
    sampling: SamplingParams = GREEDY,
    tenant: str = "",
    n: int = 24,
) -> Completion:
    return engine.generate(GenerationRequest(prompt, sampling, StopParams(n), speculation, tenant, conversation=name))
