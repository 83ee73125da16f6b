"""The engine on tiny models: equal to plain decoding, cut where it should be, and clean after whatever happens."""

from __future__ import annotations

import gc
import queue
import threading

import pytest

from app.engine.engine import Engine
from app.engine.errors import ContextLengthExceeded, EngineClosed, InvalidRequest, QueueFull
from app.engine.events import Delta, Event, Failed, Finished
from app.engine.forward.kv import KVSlab
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.engine.session import Session
from racer.auto import AutoDrafter
from tests.tiny import tiny_engine
from tests.waiting import wait_until

PLAIN = SpeculationParams(drafter="none")
PROMPTS = ["the cat sat on the mat, the cat sat on", "abcabcabcabcabc", "Q: 1+1? A: 2 Q: 1+2? A:", "z"]


def request(engine: Engine, prompt: str, **parts: object) -> GenerationRequest:
    return GenerationRequest(tuple(engine.codec.encode(prompt)), **parts)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def engine():
    with tiny_engine(eos=frozenset()) as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen2-window", "phi3-longrope", "gemma2", "gpt-oss"])
@pytest.mark.parametrize("sampling", [SamplingParams(0.0), SamplingParams(0.9, top_p=0.95, seed=11)], ids=["greedy", "sampled"])
def test_ids_equal_plain_for_every_budget_alone_and_in_company(name: str, sampling: SamplingParams):
    with tiny_engine(name, eos=frozenset(), max_nodes=64) as engine:
        stopping = StopParams(max_tokens=70)
        plain = [
            engine.generate(request(engine, prompt, sampling=sampling, stopping=stopping, speculation=PLAIN))
            for prompt in PROMPTS
        ]
        accepted = 0
        for budget in (2, 8, 24, 64):
            speculation = SpeculationParams(max_nodes=budget)
            requests = [
                request(engine, prompt, sampling=sampling, stopping=stopping, speculation=speculation) for prompt in PROMPTS
            ]
            together = engine.generate_all(requests)
            alone = engine.generate(requests[0])
            assert alone.token_ids == plain[0].token_ids
            for ours, oracle in zip(together, plain, strict=True):
                assert ours.token_ids == oracle.token_ids
                assert ours.text == oracle.text
                accepted += ours.finished.stats.num_accepted_tokens
        assert plain[0].finished.stats.mean_acceptance_length == 1.0
        if sampling.temperature == 0:
            assert accepted > 100


def test_counts_add_up(engine: Engine):
    done = engine.generate(request(engine, PROMPTS[1], sampling=SamplingParams(0.0), stopping=StopParams(max_tokens=60)))
    stats = done.finished.stats
    assert stats.emitted == done.finished.completion_tokens == len(done.token_ids) == 60
    assert stats.emitted == stats.num_accepted_tokens + stats.num_steps + 1
    assert stats.num_accepted_tokens <= stats.num_draft_tokens
    assert sum(stats.acceptance_histogram) == stats.num_steps
    assert sum(a * n for a, n in enumerate(stats.acceptance_histogram)) == stats.num_accepted_tokens
    assert sum(stats.tokens_by_source.values()) == 60
    assert stats.tokens_by_source["target"] == stats.num_steps + 1


def test_any_budget_of_tokens_gives_a_prefix_of_plain(engine: Engine):
    ids = tuple(engine.codec.encode(PROMPTS[0]))
    whole = engine.generate(ids, stopping=StopParams(max_tokens=40), speculation=PLAIN).token_ids
    for limit in range(1, 41):
        done = engine.generate(ids, stopping=StopParams(max_tokens=limit))
        assert done.token_ids == whole[:limit]
        assert done.finished.reason == "length"
        assert done.finished.completion_tokens == limit


def test_each_token_declared_eos_ends_the_answer_there(engine: Engine):
    ids = tuple(engine.codec.encode(PROMPTS[0]))
    whole = engine.generate(ids, stopping=StopParams(max_tokens=50), speculation=PLAIN).token_ids
    for token in dict.fromkeys(whole):
        end = whole.index(token) + 1
        with tiny_engine(eos=frozenset({token})) as other:
            done = other.generate(ids, stopping=StopParams(max_tokens=50))
        assert done.token_ids == whole[:end]
        assert done.text == engine.codec.decode(whole[: end - 1])
        assert (done.finished.reason, done.finished.stop_reason) == ("stop", None)
        by_id = engine.generate(ids, stopping=StopParams(max_tokens=50, stop_token_ids=(token,)))
        assert by_id.token_ids == whole[:end]
        assert (by_id.finished.reason, by_id.finished.stop_reason) == ("stop", token)


@pytest.mark.slow
def test_stop_strings_cut_at_the_earliest_completion_in_every_mode(engine: Engine):
    ids = tuple(engine.codec.encode(PROMPTS[1]))
    plain = engine.generate(ids, stopping=StopParams(max_tokens=60), speculation=PLAIN)
    text = plain.text
    for start in range(0, 50, 3):
        for width in (1, 2, 5):
            early, late = text[start : start + width], text[start + 6 : start + 9]
            stops = (late, early)
            for speculation in (PLAIN, SpeculationParams()):
                done = engine.generate(ids, stopping=StopParams(max_tokens=60, stop=stops), speculation=speculation)
                end, hit = min((text.index(s) + len(s), -len(s), s) for s in stops)[::2]
                assert done.text == text[: end - len(hit)]
                assert done.token_ids == plain.token_ids[:end]  # one character is one token here
                assert (done.finished.reason, done.finished.stop_reason) == ("stop", hit)


def test_a_stop_on_the_last_allowed_token_is_a_stop(engine: Engine):
    ids = tuple(engine.codec.encode(PROMPTS[1]))
    plain = engine.generate(ids, stopping=StopParams(max_tokens=60), speculation=PLAIN)
    new = max(place for place, token in enumerate(plain.token_ids) if token not in plain.token_ids[:place])
    assert new > 0
    done = engine.generate(ids, stopping=StopParams(max_tokens=new + 1, stop_token_ids=(plain.token_ids[new],)))
    assert (done.finished.reason, done.token_ids) == ("stop", plain.token_ids[: new + 1])
    plain = engine.generate(ids, stopping=StopParams(max_tokens=5), speculation=PLAIN)
    done = engine.generate(ids, stopping=StopParams(max_tokens=5, stop=(plain.text[-2:],)))
    assert done.finished.reason == ("stop" if plain.text.index(plain.text[-2:]) <= 3 else "length")


def test_the_context_end_is_reached_and_never_passed(engine: Engine):
    room = engine.info.max_context
    ids = tuple(engine.codec.encode("ab" * 128))
    for length in (room - 1, room - 9, room - 40):
        done = engine.generate(ids[:length])
        plain = engine.generate(ids[:length], speculation=PLAIN)
        assert done.finished.reason == "length"
        assert done.finished.completion_tokens == room - length
        assert done.token_ids == plain.token_ids
    for length in (room, room + 1):
        with pytest.raises(ContextLengthExceeded, match=str(room)):
            engine.generate((ids * 2)[:length])
    with pytest.raises(ContextLengthExceeded):
        engine.generate(ids[:10], stopping=StopParams(max_tokens=10 * room))


@pytest.mark.parametrize(
    ("prompt", "stopping", "speculation", "param"),
    [
        ((), StopParams(), SpeculationParams(), "prompt"),
        ((97,), StopParams(), SpeculationParams(), "prompt"),
        ((-1,), StopParams(), SpeculationParams(), "prompt"),
        ((5,), StopParams(max_tokens=0), SpeculationParams(), "max_tokens"),
        ((5,), StopParams(), SpeculationParams(max_nodes=0), "speculative.max_nodes"),
        ((5,), StopParams(), SpeculationParams(max_nodes=25), "speculative.max_nodes"),
    ],
)
def test_what_cannot_run_is_refused_by_name(engine: Engine, prompt, stopping, speculation, param):
    with pytest.raises(InvalidRequest) as caught:
        engine.generate(prompt, stopping=stopping, speculation=speculation)
    assert caught.value.param == param
    assert engine.generate((5,), stopping=StopParams(max_tokens=2)).finished.reason == "length"


def test_seeds_repeat_and_unseeded_answers_differ(engine: Engine):
    def sample(seed: int | None) -> GenerationRequest:
        return request(engine, "hello", sampling=SamplingParams(1.0, seed=seed), stopping=StopParams(max_tokens=24))

    alone = [engine.generate(sample(42)).token_ids for _ in range(3)]
    assert len(set(alone)) == 1
    company = engine.generate_all([sample(seed) for seed in (1, 42, None, 2, 42, None, 1, None)])
    texts = [answer.token_ids for answer in company]
    assert texts[1] == texts[4] == alone[0]
    assert texts[0] == texts[6] != texts[3]
    assert len({texts[2], texts[5], texts[7]}) == 3


PAPER = SpeculationParams(policy="paper")


@pytest.mark.slow
def test_state_of_one_request_does_not_reach_the_next_without_warm_start():
    stopping = StopParams(max_tokens=30)
    with tiny_engine(eos=frozenset(), warm_start=False) as engine:
        first, second = (engine.generate(PROMPTS[1], stopping=stopping, speculation=PAPER) for _ in range(2))
        assert first.finished.stats == second.finished.stats
    with tiny_engine(eos=frozenset(), warm_start=True) as engine:
        first, second = (engine.generate(PROMPTS[1], stopping=stopping, speculation=PAPER) for _ in range(2))
        assert second.token_ids == first.token_ids
        assert second.finished.stats.num_steps < first.finished.stats.num_steps


def test_tenants_share_no_warm_state():
    with tiny_engine(eos=frozenset()) as engine:
        ids = tuple(engine.codec.encode(PROMPTS[1]))

        def ask(tenant: str):
            request = GenerationRequest(ids, SamplingParams(0.0), StopParams(30), PAPER, tenant=tenant)
            return engine.generate(request).finished.stats

        cold = ask("a")
        assert ask("a").num_steps < cold.num_steps
        assert ask("b") == cold


def test_a_hybrid_answers_plainly_and_equals_its_own_generate():
    with tiny_engine("qwen3-next", eos=frozenset()) as engine:
        assert not engine.info.tree_attention
        ids = tuple(engine.codec.encode("hello there"))
        done = engine.generate(ids, stopping=StopParams(max_tokens=12))
        assert done.finished.stats.drafter == "none"
        company = engine.generate_all(
            [request(engine, p, sampling=SamplingParams(0.0), stopping=StopParams(8)) for p in PROMPTS]
        )
        assert [len(answer.token_ids) for answer in company] == [8] * 4


class Held:
    """Collects events and blocks the worker inside a sink until released."""

    def __init__(self, block_at: int = 10**9) -> None:
        self.events: list[Event] = []
        self.release = threading.Event()
        self.reached = threading.Event()
        self.block_at = block_at

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if len(self.events) == self.block_at:
            self.reached.set()
            self.release.wait(30)

    @property
    def last(self) -> Event:
        return self.events[-1]


def test_a_cancelled_generation_frees_its_place_within_a_step_running_or_queued():
    with tiny_engine(eos=frozenset(), max_running=1, max_queued=4) as engine:
        running, queued = Held(block_at=2), Held()
        long = request(engine, "ab", stopping=StopParams(max_tokens=200))
        first = engine.submit(long, running)
        assert running.reached.wait(30)
        second = engine.submit(long, queued)
        assert (engine.status().running, engine.status().waiting) == (1, 1)
        first.cancel()
        second.cancel()
        first.cancel()
        running.release.set()
        wait_until(lambda: (engine.status().running, engine.status().waiting) == (0, 0))
        assert engine.status().kv_usage_ratio == 0
        assert isinstance(running.last, Finished)
        assert running.last.reason == "cancelled"
        assert len([event for event in running.events if isinstance(event, Delta)]) <= 3
        assert isinstance(queued.last, Finished)
        assert queued.last.completion_tokens == 0
        assert engine.generate("ab", stopping=StopParams(max_tokens=3)).finished.completion_tokens == 3


def test_a_full_queue_refuses_and_serves_those_it_took():
    with tiny_engine(eos=frozenset(), max_running=1, max_queued=4) as engine:
        held = Held(block_at=1)
        job = request(engine, "ab", stopping=StopParams(max_tokens=5))
        engine.submit(job, held)
        assert held.reached.wait(30)
        results: list[queue.SimpleQueue[Event]] = []
        refused = 0
        for _ in range(19):
            events: queue.SimpleQueue[Event] = queue.SimpleQueue()
            try:
                engine.submit(job, events.put)
                results.append(events)
            except QueueFull:
                refused += 1
        assert (len(results), refused) == (4, 15)
        held.release.set()
        for events in results:
            while not isinstance(event := events.get(timeout=30), Finished):
                assert isinstance(event, Delta)
            assert event.completion_tokens == 5


def test_a_forward_that_raises_ends_its_own_request_only(monkeypatch: pytest.MonkeyPatch):
    with tiny_engine(eos=frozenset()) as engine:
        poison = tuple(engine.codec.encode("!!!!"))
        target = engine._scheduler.decoder.target
        forward = target.forward

        def failing(batch):
            if any(rows.cache is poisoned for rows in batch for poisoned in poisoned_caches) and len(batch[0].tokens) != 4:
                raise RuntimeError("made to fail")
            return forward(batch)

        poisoned_caches: list[object] = []
        opened = target.open

        def open_cache(capacity: int):
            cache = opened(capacity)
            if capacity == len(poison) + 77 + 24:
                poisoned_caches.append(cache)
            return cache

        monkeypatch.setattr(target, "forward", failing)
        monkeypatch.setattr(target, "open", open_cache)
        good = [Held(), Held()]
        bad = Held()
        for sink in good:
            engine.submit(request(engine, "ab", sampling=SamplingParams(0.0), stopping=StopParams(max_tokens=40)), sink)
        engine.submit(GenerationRequest(poison, SamplingParams(0.0), StopParams(max_tokens=77)), bad)
        wait_until(lambda: engine.status().running == engine.status().waiting == 0 and bool(bad.events))
        assert isinstance(bad.last, Failed)
        assert str(bad.last.error) == "made to fail"
        for sink in good:
            assert isinstance(sink.last, Finished)
            assert sink.last.completion_tokens == 40
        oracle = engine.generate("ab", stopping=StopParams(max_tokens=40), speculation=PLAIN)
        tokens = [token for event in good[0].events if isinstance(event, Delta) for token in event.token_ids]
        assert tuple(tokens) == oracle.token_ids


def test_observer_errors_harm_nobody(caplog: pytest.LogCaptureFixture):
    class Broken:
        def __getattr__(self, name: str):
            raise RuntimeError("metrics are broken")

    with tiny_engine(eos=frozenset(), observer=Broken()) as engine:
        assert engine.generate("ab", stopping=StopParams(max_tokens=9)).finished.completion_tokens == 9
    assert caplog.text.count("the observer failed") == 1


def test_close_ends_what_is_left_with_an_error_and_refuses_more():
    with tiny_engine(eos=frozenset(), max_running=1) as engine:
        held, queued = Held(block_at=2), Held()
        job = request(engine, "ab", stopping=StopParams(max_tokens=200))
        engine.submit(job, held)
        assert held.reached.wait(30)
        engine.submit(job, queued)
        engine.drain()
        with pytest.raises(EngineClosed):
            engine.submit(job, held)
        assert not engine.status().ready
        closer = threading.Thread(target=engine.close)
        closer.start()
        held.release.set()
        closer.join(30)
        assert isinstance(held.last, Failed)
        assert isinstance(queued.last, Failed)
        assert isinstance(queued.last.error, EngineClosed)


def test_leaving_a_stream_early_cancels_it(engine: Engine):
    stream = engine.stream(request(engine, "ab", stopping=StopParams(max_tokens=200)))
    next(stream)
    stream.close()
    wait_until(lambda: engine.status().running == 0)


@pytest.mark.slow
def test_five_hundred_requests_a_fifth_of_them_dropped_leave_nothing_behind():
    with tiny_engine(eos=frozenset(), max_queued=1000) as engine:
        handles, sinks = [], []
        for number in range(500):
            sink = Held()
            job = request(engine, f"request {number}", sampling=SamplingParams(0.0), stopping=StopParams(max_tokens=6))
            handles.append(engine.submit(job, sink))
            sinks.append(sink)
            if number % 5 == 0:
                handles[-1].cancel()
        wait_until(lambda: engine.status().running == engine.status().waiting == 0, timeout=120)
        wait_until(lambda: all(sink.events and isinstance(sink.last, Finished) for sink in sinks))
        finished = [sink.last for sink in sinks if isinstance(sink.last, Finished)]
        assert all(event.completion_tokens == 6 for event in finished if event.reason == "length")
        assert sum(event.reason == "length" for event in finished) >= 400
        assert engine.status().kv_usage_ratio == 0
        handles.clear()
        gc.collect()
        alive = [value for value in gc.get_objects() if isinstance(value, Session | KVSlab | AutoDrafter)]
        assert [value for value in alive if not (isinstance(value, KVSlab) and value.capacity == 1 + 256)] == []
