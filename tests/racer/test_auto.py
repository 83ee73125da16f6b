"""policy auto: one learnt order, best first, over everything that could come next."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer.acceptance import Acceptance, copy_class, count, retrieval_class
from racer.auto import AutoDrafter, Shared, WarmLayer
from racer.drafter import RacerConfig
from racer.tree import DraftTree, Source

CONFIG = RacerConfig(breadth=4)


def rows(ids: list[list[int]], probs: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(ids, np.int32), np.array(probs, np.float32)


def check(tree: DraftTree, budget: int, max_depth: int) -> None:
    assert 1 <= len(tree) <= budget
    assert tree.parents[0] == -1
    seen = set()
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        assert 0 <= parent < node
        assert tree.depth[node] == tree.depth[parent] + 1 <= max_depth
        assert tree.confidence[node] <= tree.confidence[parent]
        assert (parent, int(tree.tokens[node])) not in seen
        seen.add((parent, int(tree.tokens[node])))
    assert (np.diff(tree.confidence) <= 0).all()


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(0, 12), st.integers(2, 30))
def test_trees_are_valid_whatever_was_seen(seed: int, budget: int, max_depth: int, vocabulary: int):
    rng = np.random.default_rng(seed)
    drafter = AutoDrafter(CONFIG)
    for _ in range(5):
        tokens = rng.integers(0, vocabulary, int(rng.integers(1, 40)))
        drafter.observe(tokens)
        ids = np.stack([rng.permutation(40)[:4] for _ in tokens])
        drafter.learn(tokens, ids, rng.random((len(tokens), 4)).astype(np.float32), np.roll(tokens, 1))
        tree = drafter.propose(budget, max_depth)
        check(tree, budget, max_depth)
        drafter.judge(len(tree), [0], int(rng.integers(0, vocabulary)))


def test_the_row_of_two_tokens_speaks_before_that_of_one_and_both_before_the_prior():
    shared = Shared(np.full((10, 4), 9, np.int32), np.full((10, 4), 0.9, np.float32))
    shared.prior_ids[:] = [[9, -1, -1, -1]]
    drafter = AutoDrafter(CONFIG, shared=shared)
    drafter.observe([1, 2])
    assert drafter.propose(2, 5).tokens.tolist() == [2, 9]
    drafter.learn(np.array([2]), *rows([[5, -1, -1, -1]], [[0.5, 0, 0, 0]]), np.array([7]))
    assert drafter.propose(2, 5).tokens.tolist() == [2, 5]
    drafter.learn(np.array([2]), *rows([[6, -1, -1, -1]], [[0.5, 0, 0, 0]]), np.array([1]))
    drafter.learn(np.array([2]), *rows([[8, -1, -1, -1]], [[0.5, 0, 0, 0]]), np.array([7]))
    assert drafter.propose(2, 5).tokens.tolist() == [2, 6]


def test_the_warm_layer_reaches_the_next_session_of_the_same_key_only():
    warm = WarmLayer(4, 100)
    first = AutoDrafter(CONFIG, warm)
    first.observe([1, 2])
    first.learn(np.array([2]), *rows([[6, -1, -1, -1]], [[0.9, 0, 0, 0]]), np.array([1]))
    second, stranger = AutoDrafter(CONFIG, warm), AutoDrafter(CONFIG, WarmLayer(4, 100))
    for drafter in (second, stranger):
        drafter.observe([1, 2])
    assert second.propose(2, 5).tokens.tolist() == [2, 6]
    assert len(stranger.propose(8, 5)) == 1


def test_a_long_copy_is_drafted_in_one_run():
    passage = np.random.default_rng(0).permutation(5000)[:300]
    drafter = AutoDrafter(CONFIG)
    drafter.observe(np.concatenate([passage, [7777], passage[:12]]))
    for _ in range(40):  # the estimate of long matches rises with success
        tree = drafter.propose(64, 200)
        path = list(range(1)) + [i for i in range(1, len(tree)) if tree.tokens[i] == passage[11 + tree.depth[i]]]
        drafter.judge(len(tree), path, int(passage[11 + len(path)]))
    tree = drafter.propose(64, 200)
    on_path = sum(tree.tokens[i] == passage[11 + tree.depth[i]] for i in range(1, len(tree)))
    assert on_path >= 50
    assert set(tree.source[1:].tolist()) == {int(Source.RETRIEVAL)}


def test_the_floor_leaves_out_what_is_unlikely():
    drafter = AutoDrafter(CONFIG)
    drafter.observe([1, 2])
    drafter.learn(np.array([2]), *rows([[5, 6, 7, 8]], [[0.7, 0.2, 0.05, 0.01]]), np.array([1]))
    whole = drafter.propose(20, 3)
    some = drafter.propose(20, 3, float(whole.confidence[2]))
    assert len(whole) == 5
    assert some.tokens.tolist() == whole.tokens[:3].tolist()


def test_candidates_that_hit_rise_and_those_that_miss_fall():
    learnt = Acceptance.initial()
    good, bad = copy_class(1, 0.3), copy_class(1, 0.8)
    before = learnt.table[0, good], learnt.table[0, bad]
    for _ in range(200):
        count(learnt, 0, good, True)
        count(learnt, 0, bad, False)
    assert learnt.table[0, good] > 0.9 > before[0]
    assert learnt.table[0, bad] < 0.08 < before[1]
    assert (learnt.table > 0).all()
    assert (learnt.table < 1).all()


def test_two_witnesses_count_for_more_than_either_alone():
    table = Acceptance.initial().table
    for match, probability in ((2, 0.15), (5, 0.6)):
        retrieved, copied = retrieval_class(match, 1, 2), copy_class(0, probability)
        assert table[retrieved, copied] > max(table[retrieved, 0], table[0, copied])


def known_and_copied() -> AutoDrafter:
    """Retrieval proposes 3 below the root, a row proposes 9."""
    drafter = AutoDrafter(CONFIG)
    drafter.observe([1, 2, 3, 1, 2])
    drafter.learn(np.array([2]), *rows([[9, -1, -1, -1]], [[0.5, 0, 0, 0]]), np.array([1]))
    return drafter


def chances(drafter: AutoDrafter) -> dict[int, float]:
    tree = drafter.propose(8, 1)
    return dict(zip(tree.tokens[1:].tolist(), tree.confidence[1:].tolist(), strict=True))


@pytest.mark.parametrize(("truth", "retrieved", "copied"), [(3, 1, 0), (9, 0, 1), (5, 0, 0)])
def test_a_session_keeps_its_own_record_of_retrieved_and_of_copied_candidates(truth: int, retrieved: int, copied: int):
    drafter = known_and_copied()
    expected = chances(drafter)
    drafter._record[:] = 0.0
    drafter.judge(3, [0], truth)
    assert drafter._record[0].tolist() == pytest.approx([expected[3], retrieved])
    assert drafter._record[1].tolist() == pytest.approx([expected[9], copied])


def test_only_verified_candidates_of_accepted_parents_are_judged():
    drafter = known_and_copied()
    drafter.learn(np.array([9]), *rows([[8, -1, -1, -1]], [[0.5, 0, 0, 0]]), np.array([2]))
    tree = drafter.propose(8, 2)
    assert {(int(tree.tokens[tree.parents[node]]), int(tree.tokens[node])) for node in range(1, len(tree))} >= {(2, 9), (9, 8)}
    for verified, path, kinds in ((1, [0], []), (2, [0], [tree.source[1]]), (len(tree), [0], [0, 1])):
        drafter.propose(8, 2)
        drafter._record[:] = 0.0
        drafter.judge(verified, path, 5)
        assert [kind for kind in (0, 1) if drafter._record[kind, 0] > 0] == sorted(int(kind) for kind in kinds)
        assert drafter._record[1, 0] < 0.9  # 8 stands below a node that was not accepted


def test_a_record_scales_the_candidates_of_its_own_kind():
    plain = chances(known_and_copied())
    for kind, own, other in ((0, 3, 9), (1, 9, 3)):
        drafter = known_and_copied()
        drafter._record[kind] = (40.0, 16.0)  # 40 hits expected, 16 came
        scaled = chances(drafter)
        assert scaled[own] == pytest.approx(plain[own] * 0.5, rel=1e-5)
        assert scaled[other] == pytest.approx(plain[other], rel=1e-5)


def test_nothing_can_be_proposed_before_a_token_is_seen():
    with pytest.raises(ValueError, match="observe"):
        AutoDrafter(CONFIG).propose(8, 4)
