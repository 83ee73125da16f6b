"""The automaton equals a slow model: n-grams, counts, failure links, recency, and no pointer left behind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer.automaton import COUNT, LENGTH, NgramAutomaton, Trie

from .audit import check_against, gram_of, recency
from .naive import NaiveTrie


@pytest.mark.parametrize(
    ("n", "capacity", "alphabet", "seed"),
    [(4, 11, 2, 0), (4, 25, 3, 1), (3, 40, 5, 2), (5, 60, 3, 3), (2, 4, 3, 4), (1, 2, 4, 5)],
)
def test_equals_the_model_over_many_tokens(n: int, capacity: int, alphabet: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    automaton, naive = NgramAutomaton(n, capacity), NaiveTrie(n, capacity)
    fed = 0
    while fed < 2_000:
        chunk = rng.integers(0, alphabet, rng.integers(0, 9))
        if rng.random() < 0.3 and fed > 50:  # a copy of an earlier passage
            start = rng.integers(0, fed - 20)
            chunk = np.array(naive.tokens[start : start + 20])
        automaton.append(chunk)
        for token in chunk.tolist():
            naive.append(token)
        fed += chunk.size
        check_against(automaton, naive)
    assert automaton.trie.meta[LENGTH] == fed
    assert len(automaton) == min(capacity, len(naive.grams))
    assert automaton.evictions > 0


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(1, 30), st.lists(st.integers(0, 3), max_size=120))
def test_equals_the_model_for_any_text(n: int, spare: int, tokens: list[int]) -> None:
    capacity = n * (n + 1) // 2 + spare
    automaton, naive = NgramAutomaton(n, capacity), NaiveTrie(n, capacity)
    for token in tokens:
        automaton.append([token])
        naive.append(token)
        assert len(automaton) <= capacity
    check_against(automaton, naive)


@pytest.mark.parametrize("capacity", [16, 21, 50, 1000])
def test_rows_are_allocated_as_the_text_grows_and_nothing_else_changes(capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("racer.automaton.FIRST_NODES", 16)
    rng = np.random.default_rng(capacity)
    automaton, naive = NgramAutomaton(4, capacity), NaiveTrie(4, capacity)
    for _ in range(30):
        chunk = rng.integers(0, 9, int(rng.integers(1, 9)))
        automaton.append(chunk)
        for token in chunk.tolist():
            naive.append(token)
        check_against(automaton, naive)
        rows = automaton.trie.nodes.shape[0] - 1
        assert rows == min(capacity, 16) or rows < 2 * (len(automaton) + 4)  # no more than twice what was needed
    assert len(automaton) == min(capacity, len(naive.grams))
    assert (automaton.evictions > 0) is (capacity < 1000)


def test_a_short_session_stays_small() -> None:
    automaton = NgramAutomaton(10, 1_000_000)
    assert automaton.nbytes < 100_000
    automaton.append(np.arange(1000))
    assert automaton.evictions == 0
    assert automaton.nbytes < 150 * len(automaton)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=150))
def test_prefixes_and_suffixes_are_never_staler(tokens: list[int]) -> None:
    automaton = NgramAutomaton(4, 15)
    for token in tokens:
        automaton.append([token])
        age = {gram_of(automaton, node): rank for rank, node in enumerate(recency(automaton))}
        for gram, rank in age.items():
            if len(gram) > 1:
                assert age[gram[:-1]] > rank
                assert age[gram[1:]] > rank


@settings(max_examples=30)
@given(st.lists(st.integers(0, 4), max_size=80), st.integers(0, 80))
def test_cutting_the_text_into_calls_changes_nothing(tokens: list[int], cut: int) -> None:
    whole, parts = NgramAutomaton(4, 30), NgramAutomaton(4, 30)
    whole.append(tokens)
    parts.append(tokens[:cut])
    parts.append(np.array(tokens[cut:], np.int32))
    for name in Trie._fields:
        assert np.array_equal(getattr(whole.trie, name), getattr(parts.trie, name))


def test_counts_without_eviction_are_occurrences() -> None:
    automaton = NgramAutomaton(3, 1000)
    text = np.random.default_rng(7).integers(0, 4, 300).tolist()
    automaton.append(text)
    for node in range(1, len(automaton) + 1):
        gram = gram_of(automaton, node)
        starts = range(len(text) - len(gram) + 1)
        assert automaton.trie.nodes[node, COUNT] == sum(tuple(text[start : start + len(gram)]) == gram for start in starts)


@pytest.mark.parametrize("kind", ["loop", "random", "constant"])
def test_state_is_bounded_on_long_text(kind: str) -> None:
    texts = {
        "loop": np.tile(np.arange(37), 860),
        "random": np.random.default_rng(0).integers(0, 2**31, 32_000),
        "constant": np.full(32_000, 5),
    }
    automaton = NgramAutomaton()
    automaton.append(texts[kind])
    size = automaton.nbytes
    automaton.append(texts[kind])
    assert automaton.nbytes == size < 2_000_000
    assert len(automaton) == {"loop": 370, "random": 10_000, "constant": 10}[kind]
    assert automaton.trie.nodes[:, COUNT].min() >= 0


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="capacity of at least 56"):
        NgramAutomaton(10, 55)
    NgramAutomaton(10, 56)
    with pytest.raises(ValueError, match="n must be"):
        NgramAutomaton(0, 100)


@pytest.mark.parametrize("bad", [-1, 2**31])
def test_a_token_out_of_range_is_refused_and_changes_nothing(bad: int) -> None:
    automaton = NgramAutomaton()
    with pytest.raises(ValueError, match="at index 2"):
        automaton.append([1, 2, bad])
    assert len(automaton) == automaton.trie.meta[LENGTH] == 0
    automaton.append([2**31 - 1])
    assert gram_of(automaton, 1) == (2**31 - 1,)
