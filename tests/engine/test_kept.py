"""What is kept of sessions that have ended, row by row: how much of it, for whom, and what goes first."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from app.engine.conversations import Conversations
from app.engine.kv import KVLayout, KVSlab
from app.engine.prompts import Kept, PromptReader
from app.engine.request import GenerationRequest, StopParams
from app.engine.room import Room
from app.engine.session import Stage
from app.engine.siblings import ReadPrompt, ReadPrompts
from racer.drafter import NullDrafter
from tests.engine.drafting import FLAT
from tests.engine.hand import by_hand, queued, rounds
from tests.engine.turns import FIRST, GREEDY, PLAIN, turn
from tests.tiny import tiny_engine

LAYOUT = KVLayout(((1, 1),), ((1, 1),), torch.float32, torch.device("cpu"))


def kept(rows: int) -> Kept:
    return Kept((1,), 1, KVSlab(LAYOUT, rows), NullDrafter(), (), None)


def read(rows: int, group: object) -> ReadPrompt:
    return ReadPrompt(group, KVSlab(LAYOUT, rows), None, [], [])


def test_conversations_give_way_before_prompts_that_somebody_waits_for() -> None:
    reader: Any = PromptReader(None, None, vocab_size=1, top_k=1, chunk=1)  # type: ignore[arg-type]
    room = Room(reader, Conversations(9, 10**9, idle=10.0), kv_tokens=100)
    group = object()
    room.conversations.keep("", "c", kept(30))
    room.prompts.keep(read(30, group))
    room.reserved = 60
    room._make()
    assert (len(room.conversations), room.prompts.rows) == (0, 30)
    room.reserved = 80
    room._make()
    assert room.prompts.rows == 0


def test_of_two_prompts_the_older_gives_way() -> None:
    prompts, old, new = ReadPrompts(), object(), object()
    for group in (old, new):
        prompts.keep(read(10, group))
    prompts.make_room(1)
    assert prompts.rows == 10
    assert prompts.take(old) is None and prompts.take(new) is not None


def test_a_conversation_that_fills_the_bound_is_kept_and_one_leaves_when_its_time_is_over() -> None:
    now = 0.0
    conversations = Conversations(9, kept(10).nbytes, idle=5.0, clock=lambda: now)
    conversations.keep("", "c", kept(10))
    assert len(conversations) == 1 and conversations.takes(kept(10).nbytes) and not conversations.takes(kept(11).nbytes)
    now = 4.999
    conversations.expire()
    assert len(conversations) == 1
    now = 5.0
    conversations.expire()
    assert len(conversations) == 0


def test_an_idle_worker_lets_conversations_go_whose_time_is_over() -> None:
    with by_hand() as engine:
        now = 0.0
        engine._worker.room.conversations = Conversations(9, 10**9, idle=5.0, clock=lambda: now)
        engine._worker.room.conversations.keep("", "c", kept(10))
        engine._worker._stopping = True  # nobody waits for work
        engine._worker._round()
        assert engine.status().conversations == 1
        now = 6.0
        engine._worker._round()
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
        while first.stage is not Stage.ENDED:
            rounds(engine, 1)
        assert second.stage is Stage.DECODE and third.stage is Stage.WAITING
        assert engine._worker.room.prompts.rows == 0
        engine._worker._admit()
        assert third.prefilled == len(FIRST) - 1


def test_of_a_prompt_that_was_left_only_what_was_read_is_kept() -> None:
    with by_hand() as engine:
        session = queued(engine, GenerationRequest(FIRST, GREEDY, StopParams(9), conversation="c"))
        rounds(engine, 1)
        session.cancelled = True
        engine._worker._reap()
        held = engine._worker.room.conversations.take("", "c")
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
        room = engine._worker.room
        room.headroom = 4
        session = queued(engine, GenerationRequest(FIRST[:20], GREEDY, StopParams(200), PLAIN))
        sizes: list[int] = []
        while session.stage is not Stage.ENDED:
            rounds(engine, 1)
            if session.rows and session.rows not in sizes:
                sizes.append(session.rows)
                assert session.cache is not None and session.cache.capacity == session.rows == room.reserved
        assert sizes == [25, 42, 63, 94, 141, 211, 221]
        assert room.reserved == 0
