"""State that outlives a request: turns of a conversation."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch

from app.engine.draft.model import DraftCache
from app.engine.events import Finished
from app.engine.forward.kv import KVLayout, KVSlab
from app.engine.prefix.cache import PrefixCache
from app.engine.prefix.prefix import Prefix, common_length
from app.engine.request import DrafterName, GenerationRequest, SamplingParams, SpeculationParams, StopParams
from racer.drafter import Drafter, NullDrafter, Policy, RacerConfig
from racer.factory import new_drafter
from tests.engine.drafting import CHEAP, FLAT, similar
from tests.engine.turns import FIRST, GREEDY, SEEDED, Counting, turn
from tests.tiny import tiny_engine
from tests.waiting import wait_until


@pytest.mark.parametrize("drafter", ["none", "racer", "draft_model", "hybrid"])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "sampled"])
def test_a_second_turn_reads_only_what_is_new(drafter: DrafterName, sampling: SamplingParams):
    heard = Counting()
    speculation = SpeculationParams(drafter)
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
def test_a_turn_that_is_left_while_it_is_read_loses_nothing(drafter: DrafterName):
    heard = Counting()
    speculation = SpeculationParams(drafter)
    settings: dict[str, Any] = {"draft": similar(), "cost_curve": FLAT, "draft_curve": CHEAP, "prefill_chunk": 8}
    with tiny_engine(eos=frozenset(), observer=heard, **settings) as engine:
        one = turn(engine, FIRST, "c", speculation=speculation)
        second = (*FIRST, *one.token_ids, *range(60, 90))
        heard.read = 0
        events: list[Any] = []
        request = GenerationRequest(second, GREEDY, StopParams(8), speculation, conversation="c")
        advance = engine._decoder.prefill.advance

        def advance_and_leave(session: Any) -> None:
            advance(session)
            handle.cancel()

        engine._decoder.prefill.advance = advance_and_leave  # type: ignore[method-assign]
        with engine._scheduler.pool.wake:  # nothing is admitted before the handle is there
            handle = engine.submit(request, events.append)
        wait_until(lambda: bool(events))
        engine._decoder.prefill.advance = advance  # type: ignore[method-assign]
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
def test_a_changed_history_gives_the_answer_of_what_was_sent(change, drafter: DrafterName):
    speculation = SpeculationParams(drafter)
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
        worker = engine._scheduler
        worker.slots.kv_tokens = rows + 10
        turn(engine, FIRST, None)
        assert engine.status().conversation_rows < rows
        assert engine.status().conversations > 0


def test_no_conversation_is_kept_without_a_name_or_when_switched_off():
    with tiny_engine(eos=frozenset(), max_conversations=0) as engine:
        turn(engine, FIRST, "c")
        turn(engine, FIRST, None)
        assert engine.status().conversations == 0


LAYOUT = KVLayout(((1, 1),), ((1, 1),), torch.float32, torch.device("cpu"))


def kept(rows: int, drafter: Drafter | None = None, draft_rows: int = 0) -> Prefix:
    draft = DraftCache(KVSlab(LAYOUT, draft_rows)) if draft_rows else None
    return Prefix((1,), 1, KVSlab(LAYOUT, rows), draft, drafter or NullDrafter())


@pytest.mark.parametrize("policy", get_args(Policy))
def test_drafting_state_counts_towards_the_bound_in_bytes(policy: Policy):
    drafter = new_drafter(policy, RacerConfig(automaton_nodes=60, table_rows=2000))
    drafter.observe(np.arange(2000) % 90)
    size = drafter.nbytes
    assert size > 8 * 2000  # what it has seen, in any form
    kept_ones = PrefixCache(9, 2 * size + size // 2, idle=10.0)
    for name in ("a", "b"):
        kept_ones.keep_conversation("", name, kept(1, drafter))
    assert kept_ones.conversations == 2
    assert 2 * size < kept_ones.conversation_bytes < 2 * size + 100
    kept_ones.keep_conversation("", "c", kept(1, drafter))
    assert kept_ones.conversations == 2 and kept_ones._take_conversation("", "a") is None
    assert kept_ones._take_conversation("", "c") is not None and kept_ones._take_conversation("", "b") is not None
    assert (kept_ones.rows, kept_ones.conversation_bytes) == (0, 0)


def test_the_draft_models_kv_counts_towards_the_bound_in_bytes():
    row = kept(1).nbytes
    assert kept(10, draft_rows=7).nbytes == 17 * row
    assert kept(10, draft_rows=7).rows == 10


def test_an_engine_keeps_no_more_drafting_state_than_its_bound():
    racer = SpeculationParams("racer")
    with tiny_engine(eos=frozenset()) as engine:
        turn(engine, FIRST, "a", speculation=racer)
        size = engine.status().conversation_bytes
        kv = engine.status().conversation_rows * engine._decoder.target.bytes_per_token
    assert size > 4 * kv  # the drafter's share is what exceeds the bound below
    with tiny_engine(eos=frozenset(), conversation_memory=size + 3 * kv) as engine:
        for name in ("a", "b"):
            turn(engine, FIRST, name, speculation=racer)
        assert (engine.status().conversations, engine.status().conversation_bytes) == (1, size)
        assert turn(engine, (*FIRST, 70), "a", speculation=racer).finished.cached_tokens == 0


def test_conversations_leave_by_age_number_and_size():
    now = 0.0
    kept_ones = PrefixCache(3, 100 * kept(1).nbytes, idle=10.0, clock=lambda: now)
    for name, rows in (("a", 10), ("b", 20), ("c", 30)):
        kept_ones.keep_conversation("", name, kept(rows))
        now += 1.0
    assert (kept_ones.conversations, kept_ones.rows) == (3, 60)
    kept_ones.keep_conversation("", "b", kept(5))  # the newest now
    kept_ones.keep_conversation("", "d", kept(7))
    assert (kept_ones.conversations, kept_ones.rows) == (3, 42)
    assert kept_ones._take_conversation("", "a") is None
    kept_ones.keep_conversation("", "huge", kept(101))
    assert (kept_ones.conversations, kept_ones.rows) == (3, 42)
    kept_ones.keep_conversation("", "large", kept(90))
    assert kept_ones.rows == 97 and kept_ones._take_conversation("", "c") is None
    now += 9.5
    kept_ones.expire()
    assert kept_ones.conversations == 2
    now += 1.0
    kept_ones.expire()
    assert (kept_ones.conversations, kept_ones.rows) == (0, 0)


def test_the_draft_model_catches_up_in_chunks():
    """What an earlier turn read without it is not read at once: other sessions wait for every round."""
    settings: dict[str, Any] = {"draft": similar(), "cost_curve": FLAT, "draft_curve": CHEAP, "prefill_chunk": 8}
    with tiny_engine(eos=frozenset(), **settings) as engine:
        one = turn(engine, FIRST, "c")
        draft = engine._decoder.draft_model
        assert draft is not None
        second = (*FIRST, *one.token_ids, 70)
        read: list[int] = []
        advance = engine._decoder.prefill.advance

        def chunk(session: Any) -> None:
            before = draft.rows_read
            advance(session)
            read.append(draft.rows_read - before)

        engine._decoder.prefill.advance = chunk  # type: ignore[method-assign]
        two = turn(engine, second, "c", speculation=SpeculationParams("draft_model", fixed_budget=True))
        assert read and max(read) <= 8
        assert two.finished.cached_tokens == len(second) - 2
        assert two.finished.stats.num_accepted_tokens > 0
        assert two.token_ids == turn(engine, second, None).token_ids
