"""The default model in float32: what is decoded speculatively is what plain decoding gives, token by token."""

from __future__ import annotations

import pytest

from app.engine.engine import Engine, EngineConfig
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from tests.engine import prompts

PROMPTS = prompts.PROMPTS[::2]
TOKENS = 96


@pytest.fixture(scope="module")
def engine():
    config = EngineConfig(max_nodes=64, max_running=10)
    with Engine.from_pretrained("smollm2", config, dtype="float32") as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(engine: Engine):
    """Answers without speculation, by kind of sampling."""
    none = SpeculationParams(drafter="none")
    return {name: engine.generate_all(requests(engine, sampling, none)) for name, sampling in SAMPLING.items()}


SAMPLING = {"greedy": SamplingParams(0.0), "seeded": SamplingParams(0.8, seed=20_26)}


def requests(engine: Engine, sampling: SamplingParams, speculation: SpeculationParams) -> list[GenerationRequest]:
    ids = [tuple(engine.codec.encode_chat([{"role": "user", "content": prompt}])) for prompt in PROMPTS]
    return [GenerationRequest(prompt, sampling, StopParams(TOKENS, ignore_eos=True), speculation) for prompt in ids]


@pytest.mark.slow
@pytest.mark.parametrize("budget", [2, 8, 24, 64])
@pytest.mark.parametrize("kind", SAMPLING)
def test_ids_equal_plain(engine: Engine, plain, kind: str, budget: int):
    every = 1 if kind == "greedy" else 2  # half the prompts show the same for samples, in half the time
    answers = engine.generate_all(requests(engine, SAMPLING[kind], SpeculationParams(max_nodes=budget))[::every])
    differing = [
        prompt
        for prompt, answer, oracle in zip(PROMPTS[::every], answers, plain[kind][::every], strict=True)
        if answer.token_ids != oracle.token_ids or answer.text != oracle.text
    ]
    assert differing == []
    steps = sum(answer.finished.stats.num_steps for answer in answers)
    accepted = sum(answer.finished.stats.num_accepted_tokens for answer in answers)
    assert (accepted + steps) / steps > {2: 1.2, 8: 1.5, 24: 1.7, 64: 1.9}[budget] - (0.2 if kind == "seeded" else 0.0)


@pytest.mark.slow
def test_alone_and_in_company_is_the_same(engine: Engine, plain):
    for index in (0, 4, 7):
        alone = engine.generate(requests(engine, SAMPLING["seeded"], SpeculationParams())[index])
        assert alone.token_ids == plain["seeded"][index].token_ids
