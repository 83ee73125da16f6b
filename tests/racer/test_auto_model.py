"""The tree of auto equals a slow model of it: which candidates a path has, who proposes them, and what each is given."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer.acceptance import COPY_CLASSES, RETRIEVAL_CLASSES, copy_class, retrieval_class
from racer.auto import AutoDrafter, Shared, WarmLayer
from racer.drafter import RacerConfig
from racer.tree import Source

from .audit import paths_of

N, K, TOKENS, DEPTH = 4, 2, 5, 3
Row = tuple[tuple[int, ...], tuple[float, ...]]


class NaiveAuto:
    """The text as a list, the rows as dictionaries."""

    def __init__(self, prior: dict[int, Row], warm: dict[tuple[int, ...], Row]) -> None:
        self.text: list[int] = []
        self.own: dict[tuple[int, ...], Row] = {}
        self.warm = warm
        self.prior = prior

    def learn(self, before: int, token: int, row: Row) -> None:
        for rows in (self.own, self.warm):
            rows[token,] = row
            if before >= 0:
                rows[before, token] = row

    def grams(self) -> Counter[tuple[int, ...]]:
        text = self.text
        return Counter(tuple(text[i : i + k]) for k in range(1, N + 1) for i in range(len(text) - k + 1))

    def candidates(self, path: tuple[int, ...], grams: Counter[tuple[int, ...]]) -> dict[int, tuple[int, int]]:
        """token -> (retrieval class, copy class)."""
        text = [*self.text, *path]
        found: dict[int, tuple[int, int]] = {}
        for length in range(min(N, len(text)), 0, -1):
            match = tuple(text[-length:])
            if match not in grams or len(found) >= 4:
                continue
            children = {gram[-1]: count for gram, count in grams.items() if gram[:-1] == match}
            for token, count in children.items():
                found.setdefault(token, (retrieval_class(length, count, sum(children.values())), 0))
        here, pair = (text[-1],), tuple(text[-2:])
        layers = [self.own.get(pair) if len(pair) == 2 else None, self.warm.get(pair) if len(pair) == 2 else None]
        layers += [self.own.get(here), self.warm.get(here), self.prior.get(text[-1])]
        kind = next((kind for kind, row in enumerate(layers) if row is not None), None)
        if kind is not None:
            row = layers[kind]
            assert row is not None
            for token, probability in zip(*row, strict=True):
                found[token] = (found.get(token, (0, 0))[0], copy_class(kind, probability))
        return found

    def tree(self, table: np.ndarray, scale: np.ndarray) -> dict[tuple[int, ...], tuple[float, Source]]:
        grams = self.grams()
        nodes: dict[tuple[int, ...], tuple[float, Source]] = {(): (1.0, Source.TARGET)}
        layer: list[tuple[int, ...]] = [()]
        for _ in range(DEPTH):
            below = []
            for path in layer:
                for token, (retrieval, copy) in self.candidates(path, grams).items():
                    factor = min(table[retrieval, copy] * scale[0 if retrieval else 1], 0.995)
                    source = Source.RETRIEVAL if retrieval else Source.COPY_LOGIT
                    nodes[*path, token] = (nodes[path][0] * factor, source)
                    below.append((*path, token))
            layer = below
        return nodes


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 5))
def test_the_whole_tree_equals_the_model(seed: int, text: list[int], chunk: int) -> None:
    rng = np.random.default_rng(seed)

    def row() -> Row:
        return tuple(rng.permutation(TOKENS)[:K].tolist()), tuple(np.sort(rng.random(K).astype(np.float32))[::-1].tolist())

    prior: dict[int, Row] = {token: row() for token in range(2)}
    shared = Shared(np.array([r[0] for r in prior.values()], np.int32), np.array([r[1] for r in prior.values()], np.float32))
    shared.acceptance.table[:] = rng.uniform(0.1, 0.9, (RETRIEVAL_CLASSES, COPY_CLASSES))
    warm, warm_rows = WarmLayer(K, 50), dict[tuple[int, ...], Row]()
    config = RacerConfig(ngram=N, min_match=2, breadth=K)
    drafters = [(AutoDrafter(config, warm, shared), NaiveAuto(prior, warm_rows)) for _ in range(2)]  # one key, two sessions
    for drafter, naive in drafters:
        for start in range(0, len(text), chunk):
            part = text[start : start + chunk]
            drafter.observe(part)
            naive.text += part
            tokens = rng.integers(0, TOKENS, int(rng.integers(0, 3)))
            before, rows = rng.integers(-1, TOKENS, len(tokens)), [row() for _ in tokens]
            if len(tokens):
                ids, probs = np.array([r[0] for r in rows]), np.array([r[1] for r in rows], np.float32)
                drafter.learn(tokens, ids, probs, before)
            for previous, token, one in zip(before.tolist(), tokens.tolist(), rows, strict=True):
                naive.learn(previous, token, one)
    for drafter, naive in drafters:
        drafter._record[:] = rng.uniform(0.0, 20.0, (2, 2))
        tree = drafter.propose(5000, DEPTH)
        wanted = naive.tree(shared.acceptance.table, drafter._scale())
        assert set(paths_of(tree)) == set(wanted)
        for path, chance, source in zip(paths_of(tree), tree.confidence, tree.source, strict=True):
            assert chance == pytest.approx(wanted[path][0], rel=1e-4)
            assert source == wanted[path][1]


def test_of_many_continuations_the_most_frequent_become_candidates() -> None:
    drafter = AutoDrafter(RacerConfig(breadth=1))
    counts = {11: 2, 12: 6, 13: 1, 14: 4, 15: 3, 16: 5}
    text = [token for follower, times in counts.items() for _ in range(times) for token in (1, 2, follower)]
    drafter.observe([*text, 99, 1, 2])
    assert set(drafter.propose(20, 1).tokens[1:].tolist()) == {12, 16, 14, 15}
