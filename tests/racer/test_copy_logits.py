"""The copy-logit table: exact bound, later rows win, layers, rows shorter than k."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer.copy_logits import CopyLogitTable, find_row


def rows(first: list[int], k: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Rows that begin with the given successors."""
    ids = np.array(first, np.int32)[:, None] + np.arange(k, dtype=np.int32)
    return ids, np.full(ids.shape, 0.25, np.float32)


def row_of(table: CopyLogitTable, token: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Successors and probabilities of the token, in the table or its base."""
    layers = tuple(layer.rows for layer in (table, table.base) if layer is not None)
    layer, row = find_row(layers, token)
    if row < 0:
        return None
    present = layers[layer].ids[row] >= 0
    return layers[layer].ids[row][present], layers[layer].probs[row][present]


@settings(max_examples=60)
@given(st.integers(1, 12), st.lists(st.lists(st.integers(0, 20), max_size=30), max_size=20))
def test_equals_a_bounded_dictionary(capacity: int, calls: list[list[int]]) -> None:
    table = CopyLogitTable(2, capacity)
    model: OrderedDict[int, int] = OrderedDict()
    stamp = 0
    for tokens in calls:
        stamps = list(range(stamp, stamp + len(tokens)))
        stamp += len(tokens)
        table.write(np.array(tokens, np.int64), *rows(stamps))
        for token, value in zip(tokens, stamps, strict=True):
            if token not in model and len(model) == capacity:
                model.popitem(last=False)
            model[token] = value
            model.move_to_end(token)
        assert len(table) == len(model) <= capacity
        for token in range(21):
            found = row_of(table, token)
            assert (None if found is None else int(found[0][0])) == model.get(token)


def test_growth_keeps_rows_and_their_order_and_stops_at_the_capacity() -> None:
    table = CopyLogitTable(8, 3_000)
    small = table.nbytes
    for start in range(0, 5_000, 100):
        tokens = np.arange(start, start + 100)
        table.write(tokens, *rows(tokens.tolist(), 8))
    assert len(table) == 3_000
    assert table.nbytes > small
    assert row_of(table, 1_999) is None
    for token in (2_000, 3_333, 4_999):
        found = row_of(table, token)
        assert found is not None
        assert found[0].tolist() == list(range(token, token + 8))


def test_a_full_default_table_stays_below_four_megabytes() -> None:
    table = CopyLogitTable()
    tokens = np.arange(50_000)
    table.write(tokens, *rows(tokens.tolist(), 8))
    assert len(table) == 32_768
    assert table.nbytes < 4_000_000


def test_later_rows_win_within_a_call() -> None:
    table = CopyLogitTable(2)
    table.write(np.array([5, 6, 5]), *rows([10, 20, 30]))
    found = row_of(table, 5)
    assert found is not None
    assert found[0].tolist() == [30, 31]


def test_a_token_never_seen_has_no_row() -> None:
    table = CopyLogitTable(2)
    assert row_of(table, 0) is None
    table.write(np.array([1]), *rows([0]))
    assert row_of(table, 0) is None
    assert row_of(table, -1) is None
    assert row_of(table, 2**31) is None


def test_rows_wider_and_shorter_than_k() -> None:
    table = CopyLogitTable(3)
    table.write(np.array([1]), *rows([10], k=5))
    table.write(np.array([2]), *rows([10], k=1))
    table.write(np.array([3]), np.array([[4, -1, -1]]), np.array([[0.5, 0.0, 0.0]]))
    lengths = [len(found[0]) for token in (1, 2, 3) if (found := row_of(table, token)) is not None]
    assert lengths == [3, 1, 1]


def test_the_base_is_read_below_the_session_and_written_along() -> None:
    base = CopyLogitTable(2)
    base.write(np.array([1, 2]), *rows([100, 200]))
    session = CopyLogitTable(2, base=base)
    other = CopyLogitTable(2, base=base)
    session.write(np.array([2, 3]), *rows([20, 30]))
    first = [int(found[0][0]) for token in (1, 2, 3) if (found := row_of(session, token)) is not None]
    assert first == [100, 20, 30]
    seen = row_of(other, 3)
    assert seen is not None
    assert len(session) == 2
    assert len(other) == 0


def test_wrong_input_is_refused() -> None:
    table = CopyLogitTable(2)
    with pytest.raises(ValueError, match="shapes"):
        table.write(np.array([1, 2]), *rows([1]))
    with pytest.raises(ValueError, match="token ids"):
        table.write(np.array([-1]), *rows([1]))
    with pytest.raises(ValueError, match="base layer"):
        CopyLogitTable(2, base=CopyLogitTable(3))
    with pytest.raises(ValueError, match="at least 1"):
        CopyLogitTable(0)
    assert len(table) == 0
