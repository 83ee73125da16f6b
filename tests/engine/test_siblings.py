"""Choices of one prompt: it is read once, whoever runs when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from app.engine.draft.model import DraftCache
from app.engine.engine import Engine
from app.engine.events import Delta, Finished
from app.engine.request import DrafterName, GenerationRequest, SamplingParams, SpeculationParams, StopParams
from tests.engine.drafting import CHEAP, FLAT, similar
from tests.engine.turns import FIRST, GREEDY, PLAIN, Counting, turn
from tests.tiny import tiny_engine
from tests.waiting import wait_until


def choices(
    n: int, tokens: int = 20, speculation: SpeculationParams = PLAIN, prompt: tuple[int, ...] = FIRST
) -> list[GenerationRequest]:
    group = object()
    return [
        GenerationRequest(prompt, SamplingParams(0.9, seed=seed), StopParams(tokens), speculation, group=group)
        for seed in range(n)
    ]


def answers(
    engine: Engine, requests: Sequence[GenerationRequest], then: Callable[[list[Any]], None] = lambda handles: None
) -> list[tuple[int, ...]]:
    """Token ids of requests that are all in the queue before the first is admitted. then: hears of their handles."""
    events: list[list[Any]] = [[] for _ in requests]
    with engine._scheduler.pool.wake:
        handles = [engine.submit(one, sink.append) for one, sink in zip(requests, events, strict=True)]
        then(handles)
    wait_until(lambda: all(sink and isinstance(sink[-1], Finished) for sink in events))
    return [tuple(token for event in sink[:-1] for token in event.token_ids) for sink in events]


@pytest.mark.parametrize("drafter", ["none", "racer", "draft_model", "hybrid"])
@pytest.mark.parametrize("running", [8, 2, 1])
def test_the_choices_of_one_prompt_read_it_once(drafter: DrafterName, running: int):
    heard = Counting()
    speculation = SpeculationParams(drafter)
    settings: dict[str, Any] = {"draft": similar(), "cost_curve": FLAT, "draft_curve": CHEAP, "max_running": running}
    with tiny_engine(eos=frozenset(), observer=heard, prefill_chunk=16, **settings) as engine:
        draft = engine._decoder.draft_model
        assert draft is not None
        requests = choices(5, speculation=speculation)
        alone = [turn(engine, FIRST, None, sampling=one.sampling, n=20).token_ids for one in requests]
        assert len(set(alone)) == 5
        reads: list[int] = []
        prefill = draft.prefill

        def count_and_prefill(cache: DraftCache, tokens: Sequence[int]) -> None:
            reads.append(len(tokens))
            prefill(cache, tokens)

        draft.prefill = count_and_prefill  # type: ignore[method-assign]
        heard.read = 0
        assert answers(engine, requests) == alone
        assert heard.read == len(FIRST) + 4  # the others read the last token alone
        assert sum(reads) == (heard.read if drafter in ("draft_model", "hybrid") else 0)
        assert engine._scheduler.slots.prefixes.prompt_rows == 0


def test_choices_of_different_lengths_read_their_prompt_once():
    """The room of a choice that has ended is not what the next one needs: its rows are copied."""
    heard = Counting()
    group = object()
    requests = [
        GenerationRequest(FIRST, SamplingParams(0.9, seed=n), StopParams(n), PLAIN, group=group) for n in (5, 30, 5, 12)
    ]
    with tiny_engine(eos=frozenset(), max_running=1, observer=heard) as engine:
        alone = [turn(engine, FIRST, None, sampling=one.sampling, n=one.stopping.max_tokens or 0).token_ids for one in requests]
        heard.read = 0
        assert answers(engine, requests) == alone
        assert heard.read == len(FIRST) + 3


def test_a_prompt_that_is_kept_for_its_siblings_gives_way_to_a_request_before_them():
    """With room for one session alone the other request takes it, and the siblings read their prompt again."""
    heard = Counting()
    with tiny_engine(eos=frozenset(), max_running=1, observer=heard) as engine:
        other = GenerationRequest(tuple(range(20, 80)), GREEDY, StopParams(20), PLAIN)
        first, second, third = choices(3)
        requests = [first, other, second, third]
        alone = [turn(engine, one.prompt_ids, None, sampling=one.sampling, n=20).token_ids for one in requests]
        engine._scheduler.slots.kv_tokens = len(other.prompt_ids) + 20 + 1
        heard.read = 0
        assert answers(engine, requests) == alone
        assert heard.read == 2 * len(FIRST) + len(other.prompt_ids) + 1
        heard.read, engine._scheduler.slots.kv_tokens = 0, 200
        assert answers(engine, requests) == alone
        assert heard.read == len(FIRST) + 2 + len(other.prompt_ids)


def test_a_prompt_is_not_kept_once_no_sibling_waits():
    with tiny_engine(eos=frozenset(), max_running=1) as engine:
        prompts = engine._scheduler.slots.prefixes
        kept: list[int] = []
        keep = prompts.keep_prompt

        def keep_and_leave(group: Any, read: Any) -> None:
            keep(group, read)
            kept.append(prompts.prompt_rows)
            for handle in handles[1:]:
                handle.cancel()

        handles: list[Any] = []
        prompts.keep_prompt = keep_and_leave  # type: ignore[assignment, method-assign]
        answers(engine, choices(3), handles.extend)
        assert kept == [len(FIRST) + 20 + 1]
        wait_until(lambda: prompts.prompt_rows == 0)


def test_a_sibling_reads_the_prompt_when_the_reader_leaves():
    with tiny_engine(eos=frozenset(), prefill_chunk=1, max_running=4) as engine:
        group = object()
        requests = [GenerationRequest(FIRST, GREEDY, StopParams(8), group=group) for _ in range(3)]
        events: list[list[object]] = [[], [], []]
        handles = [engine.submit(one, sink.append) for one, sink in zip(requests, events, strict=True)]
        handles[0].cancel()
        wait_until(lambda: engine.status().running == 0 and engine.status().waiting == 0)
        answers = [[token for event in sink if isinstance(event, Delta) for token in event.token_ids] for sink in events]
        assert answers[1] == answers[2] == list(turn(engine, FIRST, None, n=8).token_ids)


@pytest.mark.parametrize("running", [2, 1])
def test_a_late_sibling_scores_its_prompt_whoever_it_copies_from(running: int):
    """With two places the third choice finds the reader gone, and copies from one that copied itself."""
    with tiny_engine(eos=frozenset(), max_running=running, prefill_chunk=16) as engine:
        group = object()
        requests = [
            GenerationRequest(
                FIRST, SamplingParams(0.9, seed=seed), StopParams(n), PLAIN, logprobs=2, prompt_logprobs=True, group=group
            )
            for seed, n in enumerate((1, 30, 5, 5))
        ]
        events: list[list[Any]] = [[] for _ in requests]
        for one, sink in zip(requests, events, strict=True):
            engine.submit(one, sink.append)
        wait_until(lambda: all(sink and isinstance(sink[-1], Finished) for sink in events))
    scores = [[score for delta in sink[:-1] for score in delta.prompt_logprobs] for sink in events]
    assert len(scores[0]) == len(FIRST)
    assert scores[1] == scores[2] == scores[3] == scores[0]
