"""The hash behaves as a dictionary, through any number of deletions."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from racer.hashing import EMPTY, delete, find, insert, make_hash

KEYS = st.tuples(st.integers(0, 3), st.integers(0, 5)).map(lambda pair: (pair[0] << 32) | pair[1])


@settings(max_examples=100)
@given(st.lists(KEYS, max_size=200))
def test_equals_a_dictionary(operations: list[int]) -> None:
    keys, values = make_hash(24)
    model: dict[int, int] = {}
    for step, key in enumerate(operations):
        if key in model:
            delete(keys, values, key)
            del model[key]
        else:
            insert(keys, values, key, step)
            model[key] = step
        assert all(
            find(keys, values, (node << 32) | token) == model.get((node << 32) | token, -1)
            for node in range(4)
            for token in range(6)
        )
    assert int((keys != EMPTY).sum()) == len(model)


def test_size_is_a_power_of_two_and_at_least_twice_the_capacity() -> None:
    for capacity in (1, 2, 3, 100, 128, 10_000):
        keys, values = make_hash(capacity)
        assert keys.size == values.size >= 2 * capacity
        assert keys.size & (keys.size - 1) == 0


def test_largest_keys() -> None:
    keys, values = make_hash(2)
    key = ((2**31 - 1) << 32) | (2**31 - 1)
    insert(keys, values, key, 7)
    assert find(keys, values, key) == 7
