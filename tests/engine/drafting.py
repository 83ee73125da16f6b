"""What the tests of the draft model share: tiny pairs of target and draft."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from app.engine.calls import Completion
from app.engine.engine import Engine, EngineConfig
from app.engine.models.loading import LoadedModel
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from tests.tiny import loaded

FLAT = ((1, 0.02), (64, 0.02))
CHEAP = ((1, 0.0005), (16, 0.0005))
DEAR = ((1, 1.0), (16, 1.0))
GREEDY = SamplingParams(0.0)
SEEDED = SamplingParams(0.9, top_p=0.95, seed=11)
PLAIN = SpeculationParams("none")
PROMPTS = ["the cat sat on the mat, the cat sat on", "abcabcabcabcabc", "Q: 1+1? A: 2 Q: 1+2? A:", "z"]
TARGET_SEED, DRAFT_SEED = 0, 1


def similar(noise: float = 0.02) -> LoadedModel:
    """The target with its head disturbed: a draft that is right most of the time, but not always."""
    model = loaded(eos=frozenset())
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        head = model.model.get_output_embeddings().weight
        head.add_(noise * head.std() * torch.randn(head.shape, generator=generator) * 10)
    return model


@contextmanager
def pair(
    draft: LoadedModel | None = None, *, eos: frozenset[int] = frozenset(), max_context: int = 256, **settings: Any
) -> Iterator[Engine]:
    """An engine with a draft model, the target itself where none is given; every draft pays unless told otherwise."""
    config = {"max_nodes": 24, "prior_rows": 0, "cost_curve": FLAT, "draft_curve": CHEAP, **settings}
    target = loaded(eos=eos, max_context=max_context)
    draft = draft or loaded(eos=eos, max_context=max_context)
    observer = config.pop("observer", None)
    with Engine(target, EngineConfig(**config), draft=replace(draft, name="small"), observer=observer) as engine:
        yield engine
    assert not engine.status().alive


def ask(
    engine: Engine, prompt: str, sampling: SamplingParams, tokens: int, speculation: SpeculationParams
) -> GenerationRequest:
    return GenerationRequest(tuple(engine.codec.encode(prompt)), sampling, StopParams(tokens), speculation)


def answer(engine: Engine, prompt: str, sampling: SamplingParams, tokens: int, speculation: SpeculationParams) -> Completion:
    return engine.generate(ask(engine, prompt, sampling, tokens, speculation))
