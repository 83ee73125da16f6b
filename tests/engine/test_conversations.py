"""State that outlives a request: turns of a conversation, and choices of one prompt."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from app.engine.conversations import Conversations
from app.engine.engine import Engine
from app.engine.events import Delta, Finished
from app.engine.kv import KVLayout, KVSlab
from app.engine.prompts import Kept, common_length
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from racer.drafter import NullDrafter
from tests.engine.drafting import CHEAP, FLAT, similar
from tests.tiny import tiny_engine
from tests.waiting import wait_until

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


def turn(engine: Engine, prompt: tuple[int, ...], name: str | None, *, speculation=PLAIN, sampling=GREEDY, tenant="", n=24):
    return engine.generate(GenerationRequest(prompt, sampling, StopParams(n), speculation, tenant, conversation=name))


@pytest.mark.parametrize("drafter", ["none", "racer", "draft_model", "hybrid"])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "sampled"])
def test_a_second_turn_reads_only_what_is_new(drafter: str, sampling: SamplingParams):
    heard = Counting()
    speculation = SpeculationParams(drafter)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"draft": similar(), "cost_curve": FLAT, "draft_curve": CHEAP}
    with tiny_engine(eos=frozenset(), observer=heard, **settings) as engine:
        one = turn(engine, FIRST, "c", speculation=speculation, sampling=sampling)
        assert one.finished.cached_tokens == 0
        second = (*FIRST, *one.token_ids, 70, 71, 72)
        heard.read = 0
        two = turn(engine, second, "c", speculation=speculation, sampling=sampling)
        assert heard.read == 4  # the answer's last token was never read, and three are new
        assert two.finished.cached_tokens == len(second) - 4
        assert two.token_ids == turn(engine, second, None, sampling=sampling).token_ids
        third = (*second, *two.token_ids, 73)
        three = turn(engine, third, "c", speculation=speculation, sampling=sampling)
        assert three.finished.cached_tokens == len(third) - 2
        assert three.token_ids == turn(engine, third, None, sampling=sampling).token_ids


@pytest.mark.parametrize("drafter", ["none", "racer", "hybrid"])
def test_a_turn_that_is_left_while_it_is_read_loses_nothing(drafter: str):
    heard = Counting()
    speculation = SpeculationParams(drafter)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"draft": similar(), "cost_curve": FLAT, "draft_curve": CHEAP, "prefill_chunk": 8}
    with tiny_engine(eos=frozenset(), observer=heard, **settings) as engine:
        one = turn(engine, FIRST, "c", speculation=speculation)
        second = (*FIRST, *one.token_ids, *range(60, 90))
        heard.read = 0
        events: list[Any] = []
        request = GenerationRequest(second, GREEDY, StopParams(8), speculation, conversation="c")
        advance = engine._decoder.prompts.advance

        def advance_and_leave(session: Any) -> None:
            advance(session)
            handle.cancel()

        engine._decoder.prompts.advance = advance_and_leave  # type: ignore[method-assign]
        with engine._worker._wake:  # nothing is admitted before the handle is there
            handle = engine.submit(request, events.append)
        wait_until(lambda: bool(events))
        engine._decoder.prompts.advance = advance  # type: ignore[method-assign]
        assert isinstance(events[0], Finished) and events[0].reason == "cancelled"
        assert heard.read == 8
        two = turn(engine, second, "c", speculation=speculation)
        assert heard.read == 31  # the answer's last token and what is new, each once
        assert two.token_ids == turn(engine, second, None).token_ids


@pytest.mark.parametrize(
    "change",
    [
        lambda text: (*text[:20], 90, *text[21:], 70),  # an earlier message was edited
        lambda text: text[5:],  # the beginning was cut off
        lambda text: text[:30],  # the conversation was rolled back
        lambda text: text,  # the same again
        lambda text: (text[0],),
    ],
)
@pytest.mark.parametrize("drafter", ["racer", "hybrid"])
def test_a_changed_history_gives_the_answer_of_what_was_sent(change, drafter: str):
    speculation = SpeculationParams(drafter)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"draft": similar(), "cost_curve": FLAT, "draft_curve": CHEAP}
    with tiny_engine(eos=frozenset(), **settings) as engine:
        one = turn(engine, FIRST, "c", speculation=speculation)
        changed = change((*FIRST, *one.token_ids))
        two = turn(engine, changed, "c", speculation=speculation)
        assert two.finished.cached_tokens == min(common_length((*FIRST, *one.token_ids[:-1]), changed), len(changed) - 1)
        assert two.token_ids == turn(engine, changed, None).token_ids


def test_names_belong_to_a_tenant_and_state_is_bounded():
    heard = Counting()
    with tiny_engine(eos=frozenset(), max_conversations=2, observer=heard) as engine:
        one = turn(engine, FIRST, "c", tenant="a")
        second = (*FIRST, *one.token_ids, 70)
        assert turn(engine, second, "c", tenant="b").finished.cached_tokens == 0
        assert turn(engine, second, "c", tenant="a").finished.cached_tokens > 0
        for name in "xyz":
            turn(engine, FIRST, name)
        assert engine.status().conversations == 2
        assert turn(engine, second, "c", tenant="a").finished.cached_tokens == 0


def test_kept_rows_make_room_for_requests():
    with tiny_engine(eos=frozenset(), max_running=2) as engine:
        for name in "abcd":
            turn(engine, FIRST, name)
        rows = engine.status().conversation_rows
        assert rows > 4 * len(FIRST)
        worker = engine._worker
        worker.kv_tokens = rows + 10
        turn(engine, FIRST, None)
        assert engine.status().conversation_rows < rows
        assert engine.status().conversations > 0


def test_no_conversation_is_kept_without_a_name_or_when_switched_off():
    with tiny_engine(eos=frozenset(), max_conversations=0) as engine:
        turn(engine, FIRST, "c")
        turn(engine, FIRST, None)
        assert engine.status().conversations == 0


def kept(rows: int) -> Kept:
    slab = KVSlab(KVLayout(((1, 1),), ((1, 1),), torch.float32, torch.device("cpu")), rows)
    return Kept((1,), 1, slab, NullDrafter(), (), None)


def test_conversations_leave_by_age_number_and_size():
    now = 0.0
    kept_ones = Conversations(3, 100, idle=10.0, clock=lambda: now)
    for name, rows in (("a", 10), ("b", 20), ("c", 30)):
        kept_ones.keep("", name, kept(rows))
        now += 1.0
    assert (len(kept_ones), kept_ones.rows) == (3, 60)
    kept_ones.keep("", "b", kept(5))  # the newest now
    kept_ones.keep("", "d", kept(7))
    assert (len(kept_ones), kept_ones.rows) == (3, 42)
    assert kept_ones.take("", "a") is None
    kept_ones.keep("", "huge", kept(101))
    assert (len(kept_ones), kept_ones.rows) == (3, 42)
    kept_ones.keep("", "large", kept(90))
    assert kept_ones.rows == 97 and kept_ones.take("", "c") is None
    now += 9.5
    kept_ones.expire()
    assert len(kept_ones) == 2
    now += 1.0
    kept_ones.expire()
    assert (len(kept_ones), kept_ones.rows) == (0, 0)


@pytest.mark.parametrize("drafter", ["none", "racer", "draft_model", "hybrid"])
@pytest.mark.parametrize("running", [8, 2])
def test_the_choices_of_one_prompt_read_it_once(drafter: str, running: int):
    heard = Counting()
    speculation = SpeculationParams(drafter)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"draft": similar(), "cost_curve": FLAT, "draft_curve": CHEAP, "max_running": running}
    with tiny_engine(eos=frozenset(), observer=heard, prefill_chunk=16, **settings) as engine:
        group = object()
        requests = [
            GenerationRequest(FIRST, SamplingParams(0.9, seed=seed), StopParams(20), speculation, group=group)
            for seed in range(5)
        ]
        alone = [turn(engine, FIRST, None, sampling=one.sampling, n=20).token_ids for one in requests]
        heard.read = 0
        together = engine.generate_all(requests)
        assert [done.token_ids for done in together] == alone
        assert len(set(alone)) == 5
        if running == 8:
            assert heard.read == len(FIRST) + 4  # the others read the last token alone


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


def test_a_late_sibling_scores_its_prompt_whoever_it_copies_from():
    """With two places the third choice finds the reader gone, and copies from one that copied itself."""
    with tiny_engine(eos=frozenset(), max_running=2, prefill_chunk=16) as engine:
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


def test_the_draft_model_catches_up_in_chunks():
    """What an earlier turn read without it is not read at once: other sessions wait for every round."""
    settings: dict[str, Any] = {"draft": similar(), "cost_curve": FLAT, "draft_curve": CHEAP, "prefill_chunk": 8}
    with tiny_engine(eos=frozenset(), **settings) as engine:
        one = turn(engine, FIRST, "c")
        draft = engine._draft
        assert draft is not None
        second = (*FIRST, *one.token_ids, 70)
        read: list[int] = []
        advance = engine._decoder.prompts.advance

        def chunk(session: Any) -> None:
            before = draft.rows_read
            advance(session)
            read.append(draft.rows_read - before)

        engine._decoder.prompts.advance = chunk  # type: ignore[method-assign]
        two = turn(engine, second, "c", speculation=SpeculationParams("draft_model", fixed_budget=True))
        assert read and max(read) <= 8
        assert two.finished.cached_tokens == len(second) - 2
        assert two.finished.stats.num_accepted_tokens > 0
        assert two.token_ids == turn(engine, second, None).token_ids
