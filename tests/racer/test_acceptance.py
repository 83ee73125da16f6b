"""Learnt acceptance: it follows what happens, however long it has been counting."""

from __future__ import annotations

import numpy as np
import pytest

from racer.acceptance import (
    HITS,
    MEMORY,
    TRIALS,
    Acceptance,
    copy_class,
    count,
    retrieval_class,
)

RETRIEVED, COPIED = retrieval_class(3, 1, 1), copy_class(2, 0.15)


def tell(learnt: Acceptance, retrieval: int, copy: int, outcomes: np.ndarray) -> None:
    for hit in outcomes:
        count(learnt, retrieval, copy, bool(hit))


@pytest.mark.parametrize(("retrieval", "copy", "kind"), [(RETRIEVED, 0, 0), (0, COPIED, 1)])
@pytest.mark.parametrize("start", [MEMORY, 2.0**24, 2.0**60])
def test_forgetting_keeps_the_rate_of_cells_and_of_classes(retrieval: int, copy: int, kind: int, start: float) -> None:
    learnt = Acceptance.initial()
    places = (learnt.counts[retrieval, copy], learnt.alone[kind, retrieval + copy])
    for place in places:
        place[:] = (0.1 * start, start)
    tell(learnt, retrieval, copy, np.array([False]))
    for place in places:
        assert place.tolist() == pytest.approx([0.05 * start, 0.5 * start + 1.0])
    assert learnt.table[retrieval, copy] == pytest.approx(0.1, abs=0.001)


@pytest.mark.parametrize(("retrieval", "copy", "kind"), [(RETRIEVED, 0, 0), (0, COPIED, 1)])
def test_counts_stay_bounded_and_honest(retrieval: int, copy: int, kind: int) -> None:
    learnt = Acceptance.initial()
    tell(learnt, retrieval, copy, np.random.default_rng(0).random(3 * int(MEMORY)) < 0.1)
    for place in (learnt.counts[retrieval, copy], learnt.alone[kind, retrieval + copy]):
        assert MEMORY / 2 <= place[TRIALS] <= MEMORY
        assert place[HITS] / place[TRIALS] == pytest.approx(0.1, abs=0.01)


def test_a_class_that_changes_is_followed() -> None:
    learnt = Acceptance.initial()
    tell(learnt, 0, COPIED, np.ones(3 * int(MEMORY), bool))
    tell(learnt, 0, COPIED, np.zeros(3 * int(MEMORY), bool))
    assert learnt.table[0, COPIED] < 0.15
    assert learnt.table[RETRIEVED, COPIED] < 0.6  # a young cell leans on both classes


def test_a_class_hears_only_of_candidates_that_are_its_own_alone() -> None:
    learnt = Acceptance.initial()
    before = learnt.alone.copy()
    tell(learnt, RETRIEVED, COPIED, np.ones(5, bool))
    assert np.array_equal(learnt.alone, before)
    assert learnt.counts[RETRIEVED, COPIED].tolist() == [5.0, 5.0]
    tell(learnt, RETRIEVED, 0, np.ones(2, bool))
    tell(learnt, 0, COPIED, np.zeros(3, bool))
    changed = learnt.alone - before
    assert changed[0, RETRIEVED].tolist() == [2.0, 2.0]
    assert changed[1, COPIED].tolist() == [0.0, 3.0]
    assert changed.sum() == 7.0


@pytest.mark.parametrize(
    ("match", "times", "total", "share"), [(1, 1, 1, 2), (1, 2, 2, 3), (4, 2, 3, 1), (4, 1, 2, 0), (4, 2, 5, 0), (7, 1, 1, 2)]
)
def test_retrieval_classes_tell_length_and_share(match: int, times: int, total: int, share: int) -> None:
    lengths = {1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 5, 60: 5}
    assert retrieval_class(match, times, total) == 1 + 4 * lengths[match] + share
    assert {retrieval_class(length, 1, 1) for length in lengths} == {1 + 4 * place + 2 for place in range(6)}


def test_copy_classes_tell_kind_and_probability() -> None:
    steps = [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9]
    for kind in range(5):
        assert [copy_class(kind, step) for step in steps] == list(range(1 + 10 * kind, 11 + 10 * kind))
        assert [copy_class(kind, step - 1e-6) for step in steps[1:]] == list(range(1 + 10 * kind, 10 + 10 * kind))
