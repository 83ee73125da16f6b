"""Places in the worker's queue: who holds one, and from when on it is free again."""

from __future__ import annotations

import queue
import threading

import pytest

from app.engine.engine import Engine
from app.engine.errors import EngineClosed, QueueFull
from app.engine.events import Delta, Event, EventSink, Failed, Finished
from app.engine.interface import GenerationHandle
from app.engine.request import GenerationRequest, SamplingParams, StopParams
from app.engine.scheduler import scheduler as worker
from tests.scenarios.turnstile import Turnstile
from tests.tiny import tiny_engine
from tests.waiting import wait_until


def submit(engine: Engine, sink: EventSink) -> GenerationHandle:
    request = GenerationRequest((5, 6, 7), SamplingParams(temperature=0.0), StopParams(max_tokens=8, ignore_eos=True))
    return engine.submit(request, sink)


def finish_reason(events: queue.SimpleQueue[Event]) -> str:
    while True:
        event = events.get(timeout=30.0)
        if isinstance(event, Finished):
            return event.reason


@pytest.mark.parametrize("gone", ["running", "waiting"])
def test_what_is_cancelled_holds_no_place(gone: str) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold(event: Event) -> None:  # runs on the worker's thread: it cannot clean up meanwhile
        if isinstance(event, Delta):
            inside.set()
            go_on.wait(30.0)

    with tiny_engine(max_running=1, max_queued=1) as engine:
        events: list[queue.SimpleQueue[Event]] = [queue.SimpleQueue(), queue.SimpleQueue()]
        handles = {"running": submit(engine, hold)}
        assert inside.wait(30.0)
        handles["waiting"] = submit(engine, events[0].put)
        with pytest.raises(QueueFull):
            submit(engine, events[1].put)
        assert engine.status().free_places == 0
        handles[gone].cancel()
        assert engine.status().free_places == 1
        submit(engine, events[1].put)
        with pytest.raises(QueueFull):
            submit(engine, lambda event: None)
        go_on.set()
        assert finish_reason(events[1]) == "length"
        assert finish_reason(events[0]) == ("cancelled" if gone == "waiting" else "length")


class Told:
    """A pace that says 17 and writes down what it is asked and told."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.held: list[float] = []

    def wait(self, ahead: int, lanes: int) -> int:
        self.asked.append((ahead, lanes))
        return 17

    def ended(self, seconds: float) -> None:
        self.held.append(seconds)


def test_who_is_turned_away_hears_how_long_the_queue_before_him_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    with tiny_engine(max_running=2, max_queued=3) as engine:
        monkeypatch.setattr(engine._scheduler.pool, "turns", told)
        turnstile = Turnstile(engine)
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        for _ in range(5):
            submit(engine, events.put)
        wait_until(lambda: engine.status().running == 2)
        told.asked.clear()
        with pytest.raises(QueueFull) as refused:
            submit(engine, lambda _: None)
        assert refused.value.retry_after == engine.status().retry_after == 17
        assert told.asked == [(4, 2), (4, 2)]  # the three that wait, and the one that asks
        assert not told.held
        turnstile.allow()
        assert [finish_reason(events) for _ in range(5)] == ["length"] * 5
        wait_until(lambda: len(told.held) == 5)


def test_who_waits_for_a_stuck_worker_hears_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "JOIN_SECONDS", 0.05)
    with tiny_engine(max_running=1) as engine:
        turnstile = Turnstile(engine)
        events: list[queue.SimpleQueue[Event]] = [queue.SimpleQueue(), queue.SimpleQueue()]
        for sink in events:
            submit(engine, sink.put)
        wait_until(lambda: turnstile.at_gate == 1)
        engine.close()
        for sink in events:
            ended = sink.get(timeout=30.0)
            assert isinstance(ended, Failed) and isinstance(ended.error, EngineClosed)
        assert engine.status().running == engine.status().waiting == 0 and engine.status().alive
        monkeypatch.setattr(worker, "JOIN_SECONDS", 30.0)
        turnstile.allow()
