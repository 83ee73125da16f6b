"""The draft model: exact whatever it proposes, in step with the session after every kind of step, and never in the way."""

from __future__ import annotations

import gc
import queue
from dataclasses import replace

import numpy as np
import pytest
import torch

from app.engine.draft.model import DraftCache, DraftModel
from app.engine.engine import Engine, EngineConfig
from app.engine.errors import InvalidRequest, ModelLoadError
from app.engine.events import Delta, Event, Finished
from app.engine.forward.target import PackedTarget
from app.engine.models.vocabulary import SharedVocabulary
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from tests.engine.drafting import CHEAP, DEAR, DRAFT_SEED, FLAT, GREEDY, PLAIN, PROMPTS, SEEDED, answer, ask, pair, similar
from tests.engine.test_control import LINEAR
from tests.models import VOCABULARY, build
from tests.tiny import loaded, tiny_engine
from tests.waiting import wait_until

FIXED = SpeculationParams("draft_model", fixed_budget=True)
CHOSEN = SpeculationParams("draft_model")


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", ["random", "similar", "itself"])
def test_ids_equal_plain_alone_and_in_company(draft: str, sampling: SamplingParams):
    small = {"random": lambda: loaded("qwen2", DRAFT_SEED, frozenset()), "similar": similar, "itself": lambda: None}[draft]()
    with pair(small) as engine:
        plain = [answer(engine, prompt, sampling, 70, PLAIN) for prompt in PROMPTS]
        for speculation in (FIXED, CHOSEN, replace(FIXED, gamma=1), replace(FIXED, gamma=20), replace(CHOSEN, max_nodes=4)):
            for prompt, oracle in zip(PROMPTS, plain, strict=True):
                assert answer(engine, prompt, sampling, 70, speculation).token_ids == oracle.token_ids
        mixed = [FIXED, SpeculationParams("racer"), PLAIN, CHOSEN, SpeculationParams("hybrid"), replace(FIXED, gamma=3)]
        requests = [
            ask(engine, PROMPTS[number % 4], sampling, 40 + 5 * number, speculation) for number, speculation in enumerate(mixed)
        ]
        for number, done in enumerate(engine.generate_all(requests)):
            assert done.token_ids == plain[number % 4].token_ids[: 40 + 5 * number]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(1.0, seed=5)], ids=["greedy", "sampled"])
def test_the_target_as_its_own_draft_is_accepted_always(sampling: SamplingParams):
    with pair(max_context=600) as engine:
        for speculation in (FIXED, CHOSEN):
            stats = answer(engine, PROMPTS[0], sampling, 500, speculation).finished.stats
            assert stats.num_accepted_tokens == stats.num_draft_tokens > 300
            assert stats.tokens_by_source["draft_model"] == stats.num_accepted_tokens
            assert stats.emitted == 500 == stats.num_accepted_tokens + stats.num_steps + 1
        assert stats.num_steps < 500 / 10  # the chosen length is long where all is accepted and drafting is cheap


def lone_model(max_context: int = 200, chunk: int = 32) -> DraftModel:
    shared = SharedVocabulary(np.ones(VOCABULARY, np.bool_))
    return DraftModel(PackedTarget(build("qwen2-window")), shared, max_context, chunk, "lone")


def continuation(model: DraftModel, text: list[int], count: int) -> list[int]:
    text = list(text)
    for _ in range(count):
        text.append(int(torch.argmax(model.packed.native_logits(text)[-1])))
    return text[-count:]


def drafted(model: DraftModel, cache: DraftCache, request: GenerationRequest, output: list[int], most: int) -> list[int] | None:
    chain = model.chain(cache, request, 0, output, most)
    if chain is None:
        return None
    while len(chain.tokens) < chain.most:
        model.advance([chain])
    return chain.tokens


def test_a_draft_continues_the_sessions_text_whatever_happened_to_the_last_one():
    """Accepted whole, in part or not at all, longer runs of another drafter, plain steps, and a step that failed."""
    model = lone_model()
    rng = np.random.default_rng(4)
    prompt = tuple(rng.integers(0, VOCABULARY, 23).tolist())
    request = GenerationRequest(prompt, GREEDY)
    cache = model.open(prompt, 190)
    assert cache is not None
    output = [int(rng.integers(VOCABULARY))]
    proposed: list[int] = []
    kinds = set()
    while len(prompt) + len(output) < 170:
        kind = ["whole", "part", "none", "other", "plain", "failed"][int(rng.integers(6))]
        kinds.add(kind)
        if kind == "plain":
            output.append(int(rng.integers(VOCABULARY)))
            continue
        proposed = drafted(model, cache, request, output, int(rng.integers(1, 7))) or []
        assert proposed == continuation(model, [*prompt, *output], len(proposed))
        assert cache.slab is not None
        assert cache.slab.length == cache.agreed + len(cache.ahead) == len(prompt) + len(output) + len(proposed) - 1
        if kind == "failed":
            continue
        kept = {"whole": len(proposed), "part": len(proposed) // 2, "none": 0, "other": 0}[kind]
        other = rng.integers(0, VOCABULARY, 9 if kind == "other" else 1).tolist()
        output += [*proposed[:kept], *other]
    assert len(kinds) == 6


def test_a_cache_that_is_far_behind_catches_up_a_chunk_at_a_time():
    model = lone_model(chunk=16)
    text = np.random.default_rng(5).integers(0, VOCABULARY, 80).tolist()
    request = GenerationRequest(tuple(text[:30]), GREEDY)
    cache = model.open(request.prompt_ids, 190)
    assert cache is not None
    output = text[30:]
    waited = 0
    while (proposed := drafted(model, cache, request, output, 4)) is None:
        waited += 1
        assert cache.agreed == 16 * waited
    assert waited == 4
    assert proposed == continuation(model, text, 4)


def test_acceptance_is_whole_again_right_after_plain_steps_and_rejections(monkeypatch: pytest.MonkeyPatch):
    plain_steps, spoilt_steps, calls = {3, 4, 10}, {6, 7, 15}, 0
    begin, advance = DraftModel.chain, DraftModel.advance

    def chain(self: DraftModel, *arguments):
        nonlocal calls
        calls += 1
        return None if calls in plain_steps else begin(self, *arguments)

    def spoil(self: DraftModel, chains):
        advance(self, chains)
        if calls in spoilt_steps and len(chains[0].tokens) == 2:
            chains[0].tokens[1] = (chains[0].tokens[1] + 1) % VOCABULARY

    monkeypatch.setattr(DraftModel, "chain", chain)
    monkeypatch.setattr(DraftModel, "advance", spoil)
    with pair() as engine:
        plain = answer(engine, PROMPTS[0], GREEDY, 100, PLAIN)
        done = answer(engine, PROMPTS[0], GREEDY, 100, FIXED)
    assert done.token_ids == plain.token_ids
    histogram = done.finished.stats.acceptance_histogram
    assert (histogram[0], histogram[1]) == (3, 3)
    assert sum(histogram[2:6]) <= 1  # the last step may have less room
    assert histogram[6] >= 8


def test_a_short_window_ends_the_drafting_and_not_the_answer():
    short = loaded(eos=frozenset(), max_context=64)
    with pair(short) as engine:
        plain = answer(engine, PROMPTS[0], GREEDY, 120, PLAIN)
        done = answer(engine, PROMPTS[0], GREEDY, 120, FIXED)
        assert done.token_ids == plain.token_ids
        stats = done.finished.stats
        inside = 64 - len(engine.codec.encode(PROMPTS[0]))
        assert inside - 8 <= stats.num_accepted_tokens <= inside
        assert stats.num_draft_tokens == stats.num_accepted_tokens
        long = answer(engine, PROMPTS[0] * 3, GREEDY, 20, SpeculationParams("hybrid"))  # a prompt beyond it
        assert long.finished.stats.tokens_by_source["draft_model"] == 0
        assert long.token_ids == answer(engine, PROMPTS[0] * 3, GREEDY, 20, PLAIN).token_ids


def test_tokens_that_the_draft_does_not_know_end_the_drafting_and_not_the_answer():
    ids = tuple(range(5, 30))
    with pair() as engine:
        plain = engine.generate(GenerationRequest(ids, GREEDY, StopParams(60), PLAIN)).token_ids
        model = engine._decoder.draft_model
        assert model is not None
        stranger = max(set(plain) - set(ids), key=plain.index)
        first = plain.index(stranger)
        assert first > 4
        known = model.shared.known.copy()
        known[stranger] = False
        model.shared = SharedVocabulary(known)
        model._strange = torch.tensor([stranger])
        done = engine.generate(GenerationRequest(ids, GREEDY, StopParams(60), FIXED))
        assert done.token_ids == plain
        assert set(done.sources[first + 1 :]) == {"target"}
        assert "draft_model" in done.sources[:first]
        assert done.sources[first] == "target"  # never proposed
        done = engine.generate(GenerationRequest((*ids, stranger), GREEDY, StopParams(20), FIXED))
        assert set(done.sources) == {"target"}


def test_a_draft_of_fewer_ids_never_proposes_the_rest():
    small = build("llama", DRAFT_SEED)
    small.resize_token_embeddings(60)
    with pair(replace(loaded(eos=frozenset()), model=small.eval())) as engine:
        assert engine._decoder.draft_model is not None
        assert engine._decoder.draft_model.shared.size == 60
        for prompt in PROMPTS:
            assert answer(engine, prompt, SEEDED, 50, FIXED).token_ids == answer(engine, prompt, SEEDED, 50, PLAIN).token_ids


def test_any_limit_gives_a_prefix_and_an_end_token_inside_a_chain_ends_the_answer():
    with pair() as engine:
        whole = answer(engine, PROMPTS[0], GREEDY, 40, PLAIN).token_ids
        for limit in range(1, 20):
            done = answer(engine, PROMPTS[0], GREEDY, limit, FIXED)
            assert done.token_ids == whole[:limit]
            assert done.finished.reason == "length"
    for token in list(dict.fromkeys(whole))[:12]:
        end = whole.index(token) + 1
        with pair(eos=frozenset({token})) as engine:
            done = answer(engine, PROMPTS[0], GREEDY, 40, FIXED)
            assert (done.token_ids, done.finished.reason) == (whole[:end], "stop")


@pytest.mark.slow
def test_a_cancelled_session_leaves_no_draft_cache():
    with pair() as engine:
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        handle = engine.submit(ask(engine, PROMPTS[0], GREEDY, 200, replace(FIXED, gamma=1)), events.put)
        assert isinstance(events.get(timeout=30), Delta)
        handle.cancel()
        wait_until(lambda: engine.status().running == 0)
        while not isinstance(event := events.get(timeout=30), Finished):
            pass
        assert event.reason in ("cancelled", "length")
        del handle
        answer(engine, "z", GREEDY, 2, PLAIN)
        gc.collect()
        assert [value for value in gc.get_objects() if isinstance(value, DraftCache)] == []


@pytest.mark.parametrize("drafter", ["draft_model", "hybrid"])
def test_without_a_draft_model_they_are_refused(drafter: str):
    speculation = SpeculationParams(drafter)  # type: ignore[arg-type]
    with tiny_engine(eos=frozenset()) as engine:
        assert engine.info.draft is None
        with pytest.raises(InvalidRequest, match="needs a draft model") as caught:
            answer(engine, "z", GREEDY, 4, speculation)
        assert caught.value.param == "speculative.drafter"
    with pytest.raises(ModelLoadError, match="needs a draft model"):
        Engine(loaded(), EngineConfig(drafter=drafter))  # type: ignore[arg-type]
    with pytest.raises(ModelLoadError, match="needs a draft model"):
        Engine.from_pretrained("nowhere", EngineConfig(drafter=drafter))  # type: ignore[arg-type]


def test_the_servers_default_may_be_the_draft_model():
    with pair(drafter="draft_model") as engine:
        assert (engine.info.draft, engine.info.drafter) == ("small", "draft_model")
        assert engine.generate("z", stopping=StopParams(8)).finished.stats.drafter == "draft_model"


def test_a_draft_that_costs_more_than_it_brings_is_not_asked():
    for target, draft in ((FLAT, DEAR), (LINEAR, CHEAP)):
        with pair(cost_curve=target, draft_curve=draft) as engine:
            assert answer(engine, PROMPTS[0], GREEDY, 60, CHOSEN).finished.stats.num_draft_tokens == 0
            assert answer(engine, PROMPTS[0], GREEDY, 60, FIXED).finished.stats.num_draft_tokens > 0


def test_a_draft_that_is_never_right_is_soon_left_alone():
    curve = ((1, 0.02), (2, 0.021), (64, 0.083))
    with pair(loaded("qwen2", DRAFT_SEED, frozenset()), cost_curve=curve, draft_curve=((1, 0.01), (16, 0.01))) as engine:
        for _ in range(3):
            stats = answer(engine, PROMPTS[0], GREEDY, 200, CHOSEN).finished.stats
        assert stats.num_draft_tokens < 0.3 * stats.num_steps


def test_a_nonpositive_gamma_is_refused():
    with pair() as engine, pytest.raises(InvalidRequest, match="gamma"):
        answer(engine, "z", GREEDY, 4, replace(FIXED, gamma=0))
