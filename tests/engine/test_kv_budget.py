"""The KV budget holds at every moment, also while rows are copied from one slab to another."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.engine.calls import Completion
from app.engine.cost.measure import Probe
from app.engine.cost.prior import PriorRows
from app.engine.engine import Engine, EngineConfig
from app.engine.events import Finished
from app.engine.forward.kv import KVSlab
from app.engine.forward.target import PackedTarget
from app.engine.request import DrafterName, GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.engine.submission import checked, new_generation
from racer.budget import CostCurve
from tests.engine.drafting import CHEAP, DEAR, FLAT, similar
from tests.engine.turns import FIRST, SEEDED, turn
from tests.models import VOCABULARY, build
from tests.tiny import loaded, tiny_engine
from tests.waiting import wait_until


class Slabs:
    """Bytes of the slabs that are alive, and the most there ever were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = self.most = 0
        create = KVSlab.__init__

        def count(slab: KVSlab, *arguments: Any) -> None:
            create(slab, *arguments)
            self._add(slab.nbytes)
            weakref.finalize(slab, self._add, -slab.nbytes)

        monkeypatch.setattr(KVSlab, "__init__", count)

    def _add(self, nbytes: int) -> None:
        self.bytes += nbytes
        self.most = max(self.most, self.bytes)


def token_bytes(engine: Engine, drafter: DrafterName) -> int:
    """Of the slabs that such a drafter has."""
    assert engine._decoder.draft_model is not None
    return engine._decoder.target.bytes_per_token + (0 if drafter == "none" else engine._decoder.draft_model.bytes_per_token)


def settings(**more: Any) -> dict[str, Any]:
    return {"eos": frozenset(), "draft": similar(), "cost_curve": FLAT, "draft_curve": CHEAP, "prefill_chunk": 16, **more}


@pytest.mark.parametrize("drafter", ["none", "hybrid"])
@pytest.mark.parametrize(
    ("room", "new", "goes_on"),
    [
        (0, 1, False),  # the first turn's slab cannot be copied to its length, and as it is it leaves no room for the second
        (80, 1, True),
        (80, 150, False),  # copied to its length it still leaves no room
    ],
)
def test_a_conversation_is_counted_twice_while_it_is_there_twice(
    drafter: DrafterName, room: int, new: int, goes_on: bool, monkeypatch: pytest.MonkeyPatch
):
    """room: rows of KV beyond what the first turn reserves. new: tokens that the second turn adds."""
    speculation = SpeculationParams(drafter)
    with tiny_engine(**settings()) as engine:
        slabs = Slabs(monkeypatch)
        stop = turn(engine, FIRST, None, sampling=SEEDED).token_ids[10]
        stopping = StopParams(100, stop_token_ids=(stop,))
        engine._scheduler.slots.kv_tokens = len(FIRST) + 100 + (1 if drafter == "none" else 24) + room
        slabs.most = slabs.bytes
        one = engine.generate(GenerationRequest(FIRST, SEEDED, stopping, speculation, conversation="c"))
        assert len(one.token_ids) <= 11
        text = (*FIRST, *one.token_ids, *(10 + place % 80 for place in range(new)))
        two = turn(engine, text, "c", speculation=speculation, sampling=SEEDED, n=12)
        assert slabs.most <= engine._scheduler.slots.kv_tokens * token_bytes(engine, drafter)
        assert two.finished.cached_tokens == (len(text) - new - 1 if goes_on else 0)
        engine._scheduler.slots.kv_tokens = 10_000
        assert two.token_ids == turn(engine, text, None, sampling=SEEDED, n=12).token_ids


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["none", "hybrid"])
@pytest.mark.parametrize("running", [1, 2, 4])
def test_many_at_once_never_exceed_the_budget(drafter: DrafterName, running: int, monkeypatch: pytest.MonkeyPatch):
    speculation = SpeculationParams(drafter)
    with tiny_engine(**settings(max_running=running)) as engine:
        slabs = Slabs(monkeypatch)
        engine._scheduler.slots.kv_tokens = 260
        groups = [object(), object()]
        requests = []
        for place in range(24):
            prompt = (*FIRST, *range(10, 12 + place))
            shared: dict[str, Any] = {"conversation": "abc"[place % 3]} if place % 2 else {"group": groups[place // 12]}
            requests.append(
                GenerationRequest(
                    prompt if place % 2 else FIRST,
                    SamplingParams(0.9, seed=place),
                    StopParams(4 + place * 5 % 17),
                    speculation,
                    **shared,
                )
            )
        alone = [
            turn(engine, one.prompt_ids, None, sampling=one.sampling, n=one.stopping.max_tokens or 0).token_ids
            for one in requests
        ]
        events: list[list[Any]] = [[] for _ in requests]
        sinks: list[Callable[[Any], None]] = [sink.append for sink in events]
        for one, sink in zip(requests, sinks, strict=True):
            engine.submit(one, sink)
        wait_until(lambda: all(sent and isinstance(sent[-1], Finished) for sent in events))
        ids = [tuple(token for event in sent[:-1] for token in event.token_ids) for sent in events]
        assert ids == alone
        assert 0 < slabs.most <= engine._scheduler.slots.kv_tokens * token_bytes(engine, drafter)


@pytest.mark.parametrize("drafter", ["none", "hybrid"])
def test_a_turn_has_the_slab_of_the_one_before_where_it_fits(drafter: DrafterName, monkeypatch: pytest.MonkeyPatch):
    """Without a bound on its answer every turn reserves the whole context: there need not be room for two of them."""
    speculation = SpeculationParams(drafter)
    with tiny_engine(**settings()) as engine:
        slabs = Slabs(monkeypatch)
        stop = turn(engine, FIRST, None, sampling=SEEDED).token_ids[10]

        def ask(prompt: tuple[int, ...], name: str | None) -> Completion:
            stopping = StopParams(None, stop_token_ids=(stop,))
            return engine.generate(GenerationRequest(prompt, SEEDED, stopping, speculation, conversation=name))

        request = checked(GenerationRequest(FIRST, SEEDED, StopParams(None), speculation), engine.info, engine.config)
        whole = new_generation(request, lambda _: None, engine.codec, engine.info.max_context).most_rows
        engine._scheduler.slots.kv_tokens = whole
        slabs.most = slabs.bytes
        text = (*FIRST, *ask(FIRST, "c").token_ids, 70)
        assert engine.status().conversation_rows == whole
        second = ask(text, "c")
        assert second.finished.cached_tokens >= len(FIRST)
        assert slabs.most <= whole * token_bytes(engine, drafter)
        assert second.token_ids == ask(text, None).token_ids


def test_nothing_gives_way_for_what_cannot_be_kept():
    with tiny_engine(**settings()) as engine:
        long = tuple(10 + place % 80 for place in range(150))
        stop = turn(engine, long, None, sampling=SEEDED).token_ids[4]
        small = (*FIRST, *turn(engine, FIRST, "small", n=4).token_ids, 70)
        room = engine._scheduler.slots
        room.prefixes.most_bytes = engine.status().conversation_bytes + 1000
        room.kv_tokens = 2 * len(long) + 101 + 40  # a copy would stand beside the running one, but not beside both
        stopping = StopParams(100, stop_token_ids=(stop,))
        engine.generate(GenerationRequest(long, SEEDED, stopping, SpeculationParams("none"), conversation="large"))
        assert engine.status().conversations == 1
        assert turn(engine, small, "small").finished.cached_tokens > 0


CHAIN = SpeculationParams("draft_model", max_nodes=8, fixed_budget=True)


def drafting_in(context: int, **more: Any) -> Engine:
    """An engine whose draft model has its own window."""
    small = replace(loaded(eos=frozenset(), max_context=context), name="small")
    target = loaded(eos=frozenset(), max_context=256)
    return Engine(target, EngineConfig(max_nodes=24, prior_rows=0, cost_curve=FLAT, **more), draft=small)


def answer(engine: Engine, prompt: tuple[int, ...], n: int, name: str | None, stop: tuple[int, ...] = ()) -> Completion:
    stopping = StopParams(n, ignore_eos=True, stop_token_ids=stop)
    return engine.generate(GenerationRequest(prompt, SamplingParams(0.0), stopping, CHAIN, conversation=name))


def test_a_draft_slab_is_not_taken_over_beyond_the_draft_models_window():
    first = (*range(10, 60), *range(10, 50))
    second = (*first, *range(20, 30))
    with drafting_in(96, draft_curve=CHEAP) as engine:
        answer(engine, first, 22, "c", stop=tuple(range(3, 97)))  # both turns reserve 120 rows
        went_on = answer(engine, second, 12, "c")
        assert went_on.finished.cached_tokens > 80
        assert went_on.token_ids == answer(engine, second, 12, None).token_ids


def test_a_draft_slab_that_was_kept_shorter_than_the_targets_is_not_taken_over():
    by_cost = SpeculationParams("draft_model", max_nodes=8)
    with drafting_in(256, draft_curve=DEAR) as engine:  # too dear to draft: the draft model falls behind
        ids = engine.generate(GenerationRequest(FIRST, SamplingParams(0.0), StopParams(180), by_cost)).token_ids
        stop = tuple(set(ids[25:]) - set(ids[:25]))
        stopping = StopParams(180, stop_token_ids=stop)
        engine.generate(GenerationRequest(FIRST, SamplingParams(0.0), stopping, by_cost, conversation="c"))
        (entry,) = engine._scheduler.slots.prefixes._conversations.values()
        kept = entry.prefix
        assert kept.slab is not None and kept.draft_cache is not None and kept.draft_cache.slab is not None
        rows = kept.slab.capacity
        assert kept.draft_cache.slab.capacity < rows
        changed = (*FIRST[:30], 70)
        went_on = answer(engine, changed, rows - len(changed) - 8, "c")
        assert went_on.finished.cached_tokens == 30
        assert went_on.token_ids == answer(engine, changed, rows - len(changed) - 8, None).token_ids


@pytest.mark.parametrize("kv_tokens", [256 + 24 + 1, 30])
def test_prior_rows_stay_within_the_budget(monkeypatch: pytest.MonkeyPatch, kv_tokens: int):
    """Chunk by chunk, and nothing is left of them at the end."""
    slabs = Slabs(monkeypatch)
    monkeypatch.setattr("app.engine.runtime.kv_budget", lambda *_: kv_tokens)
    with tiny_engine(prior_rows=97, eos=frozenset(), cost_curve=FLAT, self_check=False) as engine:
        assert engine.instruments.settle(60.0)
        assert engine.status().drafting.prior_rows == 97
        wait_until(lambda: slabs.bytes == 0)
        assert 0 < slabs.most <= kv_tokens * engine._decoder.target.bytes_per_token


def test_prior_rows_wait_where_others_fill_the_budget():
    probe = Probe(PackedTarget(build("llama", 0)), VOCABULARY, 8, 64)
    rows = PriorRows(probe, 1, 50, CostCurve([1, 64], [0.02, 0.02]), None)
    for room, did, done in ((0, False, 0), (2, False, 0), (3, True, 1), (12, True, 11), (2, False, 11), (1000, True, 50)):
        assert rows.advance(room) is did
        assert rows.done == done
    assert not rows.advance(1000)
