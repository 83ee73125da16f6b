"""Counts, decay, bound, and the increments a store still lacks."""

import math
import sys
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd.memory import MAX_COUNT, MAX_ID, CorrectionMemory

pairs = st.tuples(st.integers(0, 4), st.integers(5, 9))


def filled(*entries: tuple[int, int, int], max_entries: int = 100) -> CorrectionMemory:
    memory = CorrectionMemory(max_entries)
    for draft, target, times in entries:
        memory.record(draft, target, times)
    return memory


def entries_of(stored: Counter[tuple[int, int]]) -> list[tuple[int, int, float]]:
    return [(draft, target, float(count)) for (draft, target), count in stored.items()]


def take_in(stored: Counter[tuple[int, int]], batch: list[tuple[int, int, float]]) -> None:
    for draft, target, count in batch:
        stored[draft, target] += int(count)


def test_counts_are_per_ordered_pair():
    memory = filled((1, 2, 1), (1, 2, 1), (2, 1, 5), (MAX_ID, 0, 3), (0, MAX_ID, 4))
    assert memory.count(1, 2) == 2
    assert memory.count(2, 1) == 5
    assert memory.count(MAX_ID, 0) == 3
    assert memory.count(0, MAX_ID) == 4
    assert memory.count(7, 7) == memory.count(8, 9) == 0
    assert len(memory) == 4


def test_entries_fall_by_count_then_by_ids():
    memory = filled((3, 1, 2), (1, 9, 2), (1, 4, 2), (0, 7, 6))
    assert list(memory.entries()) == [(0, 7, 6), (1, 4, 2), (1, 9, 2), (3, 1, 2)]


@pytest.mark.parametrize("half_life", [0, 0.5, -3, math.inf, math.nan])
def test_bad_settings_are_named(half_life):
    with pytest.raises(ValueError, match="half_life"):
        CorrectionMemory(half_life=half_life)
    with pytest.raises(ValueError, match="max_entries"):
        CorrectionMemory(max_entries=0)
    with pytest.raises(ValueError, match="times"):
        CorrectionMemory().record(1, 2, times=0)


def test_a_token_does_not_diverge_from_itself():
    memory = filled((1, 2, 3))
    for change in (lambda: memory.record(4, 4), lambda: memory.merge([(4, 4, 1.0)]), lambda: memory.replace([(4, 4, 1.0)])):
        with pytest.raises(ValueError, match="two different tokens"):
            change()
    assert (list(memory.entries()), memory.recorded, memory.drain()) == ([(1, 2, 3)], 3, [(1, 2, 3)])


def test_all_counts_halve_after_each_half_life():
    memory = CorrectionMemory(half_life=4)
    for _ in range(3):
        memory.record(1, 2)
    assert memory.count(1, 2) == 3
    memory.record(3, 4)
    assert (memory.count(1, 2), memory.count(3, 4)) == (1.5, 0.5)
    memory.record(3, 4)
    assert memory.count(3, 4) == 1.5
    memory.merge([(1, 2, 2.0)])
    assert (memory.count(1, 2), list(memory.entries())) == (3.5, [(1, 2, 3.5), (3, 4, 1.5)])


def test_many_at_once_decay_as_one_by_one():
    at_once, singly = CorrectionMemory(half_life=2.5), CorrectionMemory(half_life=2.5)
    at_once.record(1, 2, times=23)
    for _ in range(23):
        singly.record(1, 2)
    assert at_once.count(1, 2) == pytest.approx(singly.count(1, 2), rel=1e-12)


@given(st.lists(pairs, min_size=1, max_size=300), st.integers(1, 3))
def test_decay_is_exact_over_rescalings(records, half_life):
    memory = CorrectionMemory(half_life=half_life)
    expected: dict[tuple[int, int], float] = {}
    for number, (draft, target) in enumerate(records, 1):
        memory.record(draft, target)
        expected[draft, target] = expected.get((draft, target), 0) + 1
        if number % half_life == 0:
            expected = {pair: count / 2 for pair, count in expected.items()}
    for pair, count in expected.items():
        assert memory.count(*pair) == count or count < 2**-20


def test_pending_is_not_decayed():
    memory = CorrectionMemory(half_life=1)
    memory.record(1, 2, times=5)
    assert memory.drain() == [(1, 2, 5)]


def test_least_frequent_leave_first_a_tenth_at_once():
    memory = CorrectionMemory(max_entries=20)
    for draft in range(20):
        memory.record(draft, 100, times=1 + draft)
    assert len(memory) == 20
    memory.record(50, 100, times=40)
    assert len(memory) == 18
    assert [draft for draft, _, _ in memory.entries()] == [50, *range(19, 2, -1)]


def test_the_older_leaves_among_equals():
    memory = CorrectionMemory(max_entries=10)
    for draft in range(10):
        memory.record(draft, 100, times=2)
    memory.record(0, 100)
    memory.record(10, 100, times=2)
    assert [draft for draft, _, _ in memory.entries()] == [0, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.slow
@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 30), st.integers(31, 60)), max_size=200))
def test_the_bound_always_holds_and_is_deterministic(bound, records):
    first, second = CorrectionMemory(bound), CorrectionMemory(bound)
    for draft, target in records:
        for memory in (first, second):
            memory.record(draft, target)
            assert len(memory) <= bound
    assert list(first.entries()) == list(second.entries())
    waiting = first.drain()
    assert len(waiting) <= bound and waiting == second.drain()


def test_replace_and_merge_keep_the_most_frequent():
    memory = CorrectionMemory(max_entries=3)
    memory.replace([(draft, 9, 10 - draft) for draft in range(8)])
    assert [entry[0] for entry in memory.entries()] == [0, 1, 2]
    memory.merge([(20, 9, 9.5), (21, 9, 0.5)])
    assert [entry[0] for entry in memory.entries()] == [0, 20, 1]


def test_drain_gives_each_increment_once():
    memory = filled((1, 2, 2), (3, 4, 1), (1, 2, 1), (6, 5, 5))
    assert memory.drain() == [(1, 2, 3), (3, 4, 1), (6, 5, 5)]
    assert memory.drain() == []
    memory.record(1, 2)
    assert memory.drain() == [(1, 2, 1)]
    assert memory.count(1, 2) == 4


def test_replace_counts_pending_and_in_flight_once():
    memory = filled((1, 2, 4))
    batch = memory.drain()
    memory.record(1, 2)
    stored = [(1, 2, 10.0), (7, 8, 3.0)]
    memory.replace(stored, in_flight=batch)  # read before the batch arrived
    assert (memory.count(1, 2), memory.count(7, 8)) == (15, 3)
    memory.replace([(1, 2, 14.0), (7, 8, 3.0)])  # read after it
    assert (memory.count(1, 2), memory.count(7, 8)) == (15, 3)


@pytest.mark.slow
@given(st.data())
def test_two_replicas_and_a_failing_store_lose_and_double_nothing(data):
    stored: Counter[tuple[int, int]] = Counter()
    total: Counter[tuple[int, int]] = Counter()
    replicas = [CorrectionMemory(), CorrectionMemory()]
    unsent: list[list[tuple[int, int, float]]] = [[], []]  # drained batches that the store has not taken
    for _ in range(data.draw(st.integers(1, 20))):
        index = data.draw(st.integers(0, 1))
        memory, batches = replicas[index], unsent[index]
        for draft, target in data.draw(st.lists(pairs, max_size=4)):
            memory.record(draft, target)
            total[draft, target] += 1
        snapshot = entries_of(stored)
        match data.draw(st.sampled_from(["arrives", "fails", "under way", "read only"])):
            case "arrives":
                take_in(stored, batches + memory.drain())
                batches.clear()
                memory.replace(entries_of(stored))
            case "fails":
                batches += memory.drain()
                memory.replace(snapshot, batches)
            case "under way":
                batches += memory.drain()
                memory.replace(snapshot, batches)
                take_in(stored, batches)
                batches.clear()
            case _:
                memory.replace(snapshot, batches)
    for memory, batches in zip(replicas, unsent, strict=True):
        take_in(stored, batches + memory.drain())
    assert stored == total
    for memory in replicas:
        memory.replace(entries_of(stored))
        assert {entry[:2]: entry[2] for entry in memory.entries()} == total


bad_ids: list[tuple[int, float, float]] = [(-1, 2, 1.0), (2**31, 2, 1.0), (True, 2, 1.0), (1, 2.0, 1.0)]
bad_counts: list[tuple[int, float, float]] = [(1, 2, count) for count in (0.0, -1.0, math.nan, math.inf, True)]


@pytest.mark.parametrize("entry", bad_ids + bad_counts)
def test_a_bad_entry_changes_nothing(entry):
    memory = filled((1, 2, 3))
    for change in (memory.merge, memory.replace):
        with pytest.raises(ValueError, match=r"^(draft|target|count) must be"):
            change([(5, 6, 1.0), entry])
    assert (list(memory.entries()), memory.drain()) == ([(1, 2, 3)], [(1, 2, 3)])


def test_merge_adds_and_is_not_pending():
    memory = CorrectionMemory(half_life=2)
    memory.record(1, 2, times=2)
    memory.merge([(1, 2, 4.0), (3, 4, 6.0), (1, 2, 1.0)])
    assert (memory.count(1, 2), memory.count(3, 4)) == (6, 6)
    assert memory.drain() == [(1, 2, 2)]


def test_clear_forgets_all():
    memory = filled((1, 2, 3))
    memory.merge([(3, 4, 1.0)])
    memory.clear()
    assert (len(memory), list(memory.entries()), memory.drain()) == (0, [], [])


def test_a_recorder_a_drainer_and_a_reader_at_once():
    memory = CorrectionMemory(max_entries=1000, half_life=None)
    stored: Counter[tuple[int, int]] = Counter()
    done = threading.Event()

    def record() -> None:
        for number in range(20_000):
            memory.record(number % 7, 100 + number % 11)
        done.set()

    def sync() -> None:
        while not done.is_set():
            batch = memory.drain()
            if len(batch) % 3 == 0:
                memory.replace(entries_of(stored), batch)
            take_in(stored, batch)
            memory.replace(entries_of(stored))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for work in (record, sync)]
        for thread in threads:
            thread.start()
        last = 0.0
        while not done.is_set():
            count = memory.count(3, 103)
            assert count >= last
            last = count
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    take_in(stored, memory.drain())
    assert sum(stored.values()) == 20_000
    assert {entry[:2]: entry[2] for entry in memory.entries()} == stored


def test_a_count_ends_where_a_float_no_longer_counts_by_ones():
    memory = CorrectionMemory(half_life=3)
    for _ in range(3):
        memory.merge([(1, 2, float(MAX_COUNT)), (3, 4, float(MAX_COUNT))])
        memory.record(1, 2, 4)
    assert 0 < memory.count(1, 2) <= MAX_COUNT and memory.count(3, 4) <= MAX_COUNT
    memory.replace(memory.entries(), [(1, 2, float(MAX_COUNT))])
    assert memory.count(1, 2) == MAX_COUNT
