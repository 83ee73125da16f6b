"""What is kept of sessions that have ended, row by row: how much of it, for whom, and what goes first."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from app.engine.draft.model import DraftCache
from app.engine.forward.kv import KVLayout, KVSlab
from app.engine.prefix.cache import PrefixCache
from app.engine.prefix.prefix import Prefix
from app.engine.request import GenerationRequest, StopParams
from app.engine.slots import Slots
from racer.drafter import NullDrafter
from racer.tree import Source
from tests.engine.drafting import FLAT
from tests.engine.hand import by_hand, lone_session, queued, rounds, session_of
from tests.engine.test_draft_model import lone_model
from tests.engine.turns import FIRST, GREEDY, PLAIN, turn
from tests.tiny import tiny_engine

LAYOUT = KVLayout(((1, 1),), ((1, 1),), torch.float32, torch.device("cpu"))


def kept(rows: int) -> Prefix:
    return Prefix((1,), 1, KVSlab(LAYOUT, rows), None, NullDrafter())


def read(rows: int) -> Prefix:
    return Prefix((1,), 1, KVSlab(LAYOUT, rows))


def test_conversations_give_way_before_prompts_that_somebody_waits_for() -> None:
    target: Any = None
    prefixes = PrefixCache(9, 10**9, idle=10.0)
    slots = Slots(target, None, lambda _: NullDrafter(), prefixes, vocab_size=1, kv_tokens=100)
    prefixes.keep_conversation("", "c", kept(30))
    prefixes.keep_prompt(object(), read(30))
    slots.reserved = 60
    slots._make_room()
    assert (prefixes.conversations, prefixes.prompt_rows) == (0, 30)
    slots.reserved = 80
    slots._make_room()
    assert prefixes.prompt_rows == 0


def test_of_two_prompts_the_older_gives_way() -> None:
    prefixes, old, new = PrefixCache(), object(), object()
    for group in (old, new):
        prefixes.keep_prompt(group, read(10))
    prefixes.make_room(19)
    assert prefixes.rows == prefixes.prompt_rows == 10
    asked = [GenerationRequest((1, 2), group=group) for group in (old, new)]
    assert prefixes.take(asked[0], fresh=True) is None and prefixes.take(asked[1], fresh=True) is not None


def test_a_conversation_that_fills_the_bound_is_kept_and_one_leaves_when_its_time_is_over() -> None:
    now = 0.0
    prefixes = PrefixCache(9, kept(10).nbytes, idle=5.0, clock=lambda: now)
    prefixes.keep_conversation("", "c", kept(10))
    assert prefixes.conversations == 1 and prefixes.holds(kept(10).nbytes) and not prefixes.holds(kept(11).nbytes)
    now = 4.999
    prefixes.expire()
    assert prefixes.conversations == 1
    now = 5.0
    prefixes.expire()
    assert prefixes.conversations == 0


def test_an_idle_worker_lets_conversations_go_whose_time_is_over() -> None:
    with by_hand() as engine:
        now = 0.0
        engine._scheduler.slots.prefixes = PrefixCache(9, 10**9, idle=5.0, clock=lambda: now)
        engine._scheduler.slots.prefixes.keep_conversation("", "c", kept(10))
        engine._scheduler.pool.stopping = True  # nobody waits for work
        engine._scheduler.round()
        assert engine.status().conversations == 1
        now = 6.0
        engine._scheduler.round()
        assert engine.status().conversations == 0


@pytest.mark.parametrize(("n", "copied"), [(63, False), (64, True)])
def test_a_slab_with_few_rows_to_spare_is_kept_and_a_larger_one_is_cut(n: int, copied: bool) -> None:
    """The answer ends with its first token, n rows before it could have."""
    with tiny_engine(eos=frozenset(), cost_curve=FLAT) as engine:
        stop = turn(engine, FIRST, None, n=1).token_ids[0]
        stopping = StopParams(n, stop_token_ids=(stop,))
        engine.generate(GenerationRequest(FIRST, GREEDY, stopping, PLAIN, conversation="c"))
        assert engine.status().conversation_rows == len(FIRST) + (0 if copied else n + 1)


def test_a_prompt_is_not_kept_while_a_running_sibling_has_it() -> None:
    with by_hand(max_running=2) as engine:
        group = object()
        lengths = (3, 20, 20)
        first, second, third = (
            queued(engine, GenerationRequest(FIRST, GREEDY, StopParams(n), PLAIN, group=group)) for n in lengths
        )
        while not first.ended:
            rounds(engine, 1)
        assert session_of(engine, second).decoding and list(engine._scheduler.pool.waiting) == [third]
        assert engine._scheduler.slots.prefixes.prompt_rows == 0
        engine._scheduler.pool.admit()
        assert session_of(engine, third).cache.length == len(FIRST) - 1


def test_of_a_prompt_that_was_left_only_what_was_read_is_kept() -> None:
    with by_hand() as engine:
        session = queued(engine, GenerationRequest(FIRST, GREEDY, StopParams(9), conversation="c"))
        rounds(engine, 1)
        session.cancelled = True
        engine._scheduler.pool.reap()
        held = engine._scheduler.slots.prefixes.take(session.request, fresh=True)
        assert held is not None and held.slab is not None
        assert held.tokens == FIRST[:16] and held.prompt_length == held.slab.length == 16


@pytest.mark.parametrize("path", [[0, 0], [1, 1], [2, 1], [0, 3, 2]])
def test_rows_are_kept_once_and_in_order(path: list[int]) -> None:
    slab = KVSlab(LAYOUT, 8)
    with pytest.raises(ValueError, match="ascend"):
        slab.commit(path)
    assert slab.length == 0


def test_a_slab_grows_by_half_so_that_a_long_answer_is_copied_a_few_times() -> None:
    with by_hand() as engine:
        room = engine._scheduler.slots
        room.headroom = 4
        session = queued(engine, GenerationRequest(FIRST[:20], GREEDY, StopParams(200), PLAIN))
        sizes: list[int] = []
        while not session.ended:
            rounds(engine, 1)
            for running in engine._scheduler.pool.running:
                assert running.cache.capacity == running.rows == room.reserved
                if running.rows not in sizes:
                    sizes.append(running.rows)
        assert sizes == [25, 42, 63, 94, 141, 211, 221]
        assert room.reserved == 0


def test_a_place_counts_from_when_it_was_taken_and_not_from_the_queue() -> None:
    with by_hand(max_running=1) as engine:
        worker = engine._scheduler
        held: list[float] = []
        pace: Any = worker.pool.turns
        pace.ended = held.append
        session = queued(engine, GenerationRequest(FIRST, GREEDY, StopParams(2), PLAIN))
        session.submitted_at = session.admitted_at = 0.0  # since the machine started
        before = time.monotonic()
        while not session.ended:
            rounds(engine, 1)
        assert session.admitted_at >= before
        assert len(held) == 1 and held[0] <= time.monotonic() - before


class Halves:
    """Renders a token with the next one, as a character of several does."""

    def __init__(self) -> None:
        self.held = ""

    def push(self, token: int) -> str:
        shown, self.held = self.held, f"<{token}>"
        return shown

    def flush(self) -> str:
        shown, self.held = self.held, ""
        return shown


@pytest.mark.parametrize("after", [1, 3])
def test_what_was_held_back_comes_with_the_end_also_where_a_stop_token_ends_the_answer(after: int) -> None:
    with by_hand() as engine:
        answer = queued(engine, GenerationRequest(FIRST, GREEDY, StopParams(9, stop_token_ids=(90,)), PLAIN)).answer
        answer._detokenizer = Halves()  # type: ignore[assignment]
        answer.append([*range(20, 20 + after), 90], [Source.TARGET] * (after + 1))
        assert answer.finish_reason == "stop"
        assert answer.finish("stop").text == f"<{19 + after}>"


def test_a_draft_cache_that_is_closed_stays_so() -> None:
    closed, dropped = DraftCache(KVSlab(LAYOUT, 8)), DraftCache(KVSlab(LAYOUT, 8), agreed=5, ahead=[1, 2])
    closed.close()
    dropped.drop()
    assert (dropped.slab, dropped.agreed, dropped.ahead) == (None, 0, [])
    model = lone_model()
    for cache in (closed, dropped):
        model.reopen(cache, 30)
    assert closed.slab is None and dropped.slab is not None and dropped.slab.capacity == 30


def test_a_prompt_that_is_read_again_counts_once() -> None:
    with by_hand() as engine:
        request, codec = GenerationRequest(FIRST, GREEDY, StopParams(9), PLAIN), engine.codec
        session, counted = lone_session(request, codec, 1, 9), 0
        for prefilled, before in ((16, 0), (32, 16), (16, 0), (32, 16), (48, 32), (50, 48), (16, 0), (50, 48), (53, 50)):
            session.cache.length = prefilled
            counted += session.count_read(before)
        assert counted == len(FIRST) == 50
        taken_over = lone_session(request, codec, 1, 9)
        taken_over.cache.length = 50
        assert taken_over.count_read(40) == 10
