"""Forced reading: the same divergences as comparing both models' own logits, however the texts are packed and cut."""

from __future__ import annotations

import numpy as np
import pytest

from app.calibration.forced import ComparedText, ForcedReader, Text
from app.engine.forward.target import PackedTarget
from tests.models import VOCABULARY, build

RNG = np.random.default_rng(0)
TEXTS = [
    Text(f"t/{n}", tuple(RNG.integers(3, VOCABULARY, length).tolist()), start)
    for n, (length, start) in enumerate([(5, 1), (40, 17), (1, 1), (9, 0), (23, 20), (64, 1), (3, 3)])
]


def expected(text: Text) -> tuple[int, list[tuple[int, int]]]:
    ours, theirs = (PackedTarget(build("llama", seed)).native_logits(text.tokens).argmax(-1).tolist() for seed in (0, 1))
    compared = range(max(1, text.start), len(text.tokens))
    return len(compared), [(theirs[at - 1], ours[at - 1]) for at in compared if theirs[at - 1] != ours[at - 1]]


def read(chunk: int, draft_seed: int = 1) -> list[ComparedText]:
    target, draft = PackedTarget(build("llama", 0)), PackedTarget(build("llama", draft_seed))
    return list(ForcedReader(target, draft, shared=VOCABULARY, chunk=chunk).read(TEXTS))


@pytest.mark.parametrize("chunk", [1, 7, 32, 512])
def test_every_divergence_is_found_once_for_every_chunk(chunk: int):
    readings = read(chunk)
    assert [reading.key for reading in readings] == [text.key for text in TEXTS]
    for reading, text in zip(readings, TEXTS, strict=True):
        positions, pairs = expected(text)
        assert reading.positions == positions
        assert [(event.draft, event.target) for event in reading.events] == pairs
        assert all(event.gap < 0 for event in reading.events)
    assert sum(len(reading.events) for reading in readings) > 20


def test_a_model_does_not_diverge_from_itself():
    assert all(not reading.events for reading in read(32, draft_seed=0))


def test_what_lies_before_and_behind_is_not_compared():
    tokens = tuple(RNG.integers(3, VOCABULARY, 40).tolist())
    target, draft = (PackedTarget(build("llama", seed)) for seed in (0, 1))
    whole, part = ForcedReader(target, draft, shared=VOCABULARY, chunk=16).read(
        [Text("a", tokens, 1), Text("b", tokens, 10, 30)]
    )
    assert part.positions == 20
    assert whole.positions == 39
    assert len(part.events) <= 20
    first = next(iter(ForcedReader(target, draft, shared=VOCABULARY).read([Text("a", tokens[:10], 1)])))
    assert whole.events[len(first.events) :][: len(part.events)] == part.events
