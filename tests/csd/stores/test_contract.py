"""What every store promises."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from csd.memory import MAX_COUNT, CorrectionMemory
from csd.stores.base import KEPT_BATCHES, Batch
from tests.csd.stores.conftest import NewStore


def test_an_empty_store(url: str, new_store: NewStore) -> None:
    store = new_store(url)
    store.open()
    snapshot = store.load()
    assert (store.version(), snapshot.version, snapshot.entries) == (0, 0, [])


def test_batches_add_up(url: str, new_store: NewStore) -> None:
    store = new_store(url)
    first = store.add((1, 2, 1.0), (3, 4, 2.5), (1, 2, 1.0))
    second = store.add((1, 2, 5.0))
    snapshot = store.load()
    assert first > 0 and second == first + 1 == store.version() == snapshot.version
    assert snapshot.entries == [(1, 2, 7.0), (3, 4, 2.5)]


def test_a_batch_counts_once(url: str, new_store: NewStore) -> None:
    one, other = new_store(url), new_store(url)
    batch = Batch(((1, 2, 1.0),))
    version = one.apply(batch)
    assert other.apply(batch) == one.apply(batch) == version
    later = other.add((5, 6, 1.0))
    assert one.apply(batch) == later
    assert one.counts() == {(1, 2): 1.0, (5, 6): 1.0}


def test_another_connection_finds_it_later(url: str, new_store: NewStore) -> None:
    new_store(url).add((1, 2, 3.0))
    assert new_store(url).counts() == {(1, 2): 3.0}


def test_fingerprints_are_apart(url: str, new_store: NewStore) -> None:
    mine, foreign = new_store(url, "mine"), new_store(url, "foreign")
    batch = Batch(((1, 2, 3.0),))
    foreign.apply(batch)
    assert (mine.version(), mine.counts()) == (0, {})
    mine.apply(batch)
    mine.clear()
    assert foreign.counts() == {(1, 2): 3.0}


def test_clear_empties_and_is_seen(url: str, new_store: NewStore) -> None:
    store = new_store(url)
    batch = Batch(((1, 2, 3.0),))
    version = store.apply(batch)
    store.clear()
    assert store.version() == version + 1 and store.counts() == {}
    store.apply(batch)  # a late repetition
    assert store.counts() == {}


def test_a_table_is_replaced_whole(url: str, new_store: NewStore) -> None:
    store, other = new_store(url), new_store(url, max_entries=6_000)
    version = store.add((1, 2, 3.0), (3, 4, 1.0))
    rows = [(5, target, float(target)) for target in range(6, 6_007)]  # more than one call carries
    store.replace(*rows)
    assert store.version() == version + 1 and sorted(store.load().entries) == rows
    other.replace(*rows)
    assert len(other.counts()) <= 6_000 and (5, 6) not in other.counts()
    store.replace()
    assert store.counts() == {}


def test_counts_beyond_what_a_float_counts_by_ones_are_given_out_at_that_bound(url: str, new_store: NewStore) -> None:
    store = new_store(url)
    for _ in range(3):
        store.add((1, 2, MAX_COUNT), (3, 4, 1.0))
    assert store.counts() == {(1, 2): MAX_COUNT, (3, 4): 3.0}
    CorrectionMemory().replace(store.load().entries)


def test_counts_of_equal_tokens_in_an_older_table_are_left_out(url: str, new_store: NewStore) -> None:
    store = new_store(url)
    store.replace((1, 2, 3.0), (5, 5, 9.0))
    assert store.load().entries == [(1, 2, 3.0)]
    store.add((1, 2, 1.0))
    assert store.counts() == {(1, 2): 4.0}


def test_the_least_frequent_leave_first(url: str, new_store: NewStore) -> None:
    store = new_store(url, max_entries=20)
    store.add(*((0, token, float(token)) for token in range(1, 21)))
    assert len(store.counts()) == 20
    store.add((2, 3, 0.5))
    assert sorted(target for _, target in store.counts()) == list(range(3, 21))


def test_a_long_table_is_read_whole(url: str, new_store: NewStore) -> None:
    store = new_store(url)
    rows = [(draft, target, float(1 + draft)) for draft in range(40) for target in range(40, 340)]
    for start in range(0, len(rows), 4000):
        store.add(*rows[start : start + 4000])
    assert sorted(store.load().entries) == rows


def test_old_batch_ids_are_forgotten(url: str, new_store: NewStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEPT_BATCHES == 10_000
    for module in ("csd.stores.sqlite", "csd.stores.redis"):
        monkeypatch.setattr(f"{module}.KEPT_BATCHES", 3)
    store = new_store(url)
    batches = [Batch(((9, number, 1.0),)) for number in range(5)]
    for batch in batches:
        store.apply(batch)
    for batch in (*batches[2:], batches[1]):
        store.apply(batch)
    assert store.counts() == {(9, 0): 1.0, (9, 1): 2.0, (9, 2): 1.0, (9, 3): 1.0, (9, 4): 1.0}


@pytest.mark.parametrize(
    "increment", [(-1, 2, 1.0), (1, 2**31, 1.0), (3, 3, 1.0), (1, 2, 0.0), (1, 2, -1.0), (1, 2, math.nan), (1, 2, math.inf)]
)
def test_a_batch_refuses_what_no_store_could_add(increment: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="positive, finite"):
        Batch((increment,))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(2**31 - 2, 2**31 - 1), st.integers(1, 2**40).map(float)), max_size=5),
        max_size=5,
    )
)
def test_any_batches_any_repetition(url: str, new_store: NewStore, rows: list[list[tuple[int, int, float]]]) -> None:
    store = new_store(url)
    store.clear()
    batches = [Batch(tuple(increments)) for increments in rows]
    expected: dict[tuple[int, int], float] = {}
    for batch in batches:
        for draft, target, count in batch.increments:
            expected[draft, target] = expected.get((draft, target), 0.0) + count
    for batch in (*batches, *reversed(batches)):
        store.apply(batch)
    assert store.counts() == expected
