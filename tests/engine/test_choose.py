"""`choose`: greedy, filters, and a sample that keeps the target's distribution whatever is drafted."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from app.engine.request import SamplingParams
from app.engine.sampling.choose import _keys, choose, gumbel, narrowed, random_bits, random_bits_on_device
from csd.verify import walk_exact
from racer.tree import DraftTree

VOCABULARY = 12


def tree_of(tokens: list[int], parents: list[int]) -> DraftTree:
    depth = [0] * len(tokens)
    for node in range(1, len(tokens)):
        depth[node] = depth[parents[node]] + 1
    n = len(tokens)
    return DraftTree(
        np.asarray(tokens, np.int64),
        np.asarray(parents, np.int32),
        np.asarray(depth, np.int32),
        np.ones(n, np.uint8),
        np.ones(n, np.float32),
    )


def choose_from(logits: torch.Tensor, _node: int, emitted: int) -> int:
    return choose(logits, SamplingParams(0.0), 0, emitted)


def test_the_greedy_walk_takes_the_argmax_and_never_a_plausible_sibling():
    row = torch.tensor([0.30, 0.50, 0.20]).log()
    near_tie = torch.tensor([0.0001, 0.5001, 0.4998]).log()
    for logits in (row, near_tie):
        tree = tree_of([0, 0, 2], [-1, 0, 0])
        walk = walk_exact(tree, partial(choose_from, logits))
        assert walk.tokens == (1,)
        assert walk.accepted == 0


@given(st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40, unique=True), st.integers(0, 2**63 - 1))
def test_a_temperature_next_to_zero_is_greedy(values: list[float], seed: int):
    logits = torch.tensor(values)
    for temperature in (0.0, 1e-6, 1e-30):
        assert choose(logits, SamplingParams(temperature), seed, 3) == int(torch.argmax(logits))


def test_the_noise_is_standard_gumbel_and_depends_on_seed_position_and_token_alone():
    tokens = torch.arange(200_000)
    noise = gumbel(7, 3, tokens)
    assert kstest(noise.numpy(), "gumbel_r").pvalue > 0.001
    assert torch.equal(noise[1000:2000], gumbel(7, 3, tokens[1000:2000]))
    for other in (gumbel(8, 3, tokens), gumbel(7, 4, tokens), gumbel(7 + 2**40, 3, tokens), gumbel(-7, 3, tokens)):
        assert abs(float(np.corrcoef(noise.numpy(), other.numpy())[0, 1])) < 0.01
    assert torch.isfinite(noise).all()


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31))
def test_the_compiled_and_the_tensor_hash_agree(seed: int, position: int):
    tokens = torch.tensor([0, 1, 2, 11, 49151, 151_935, 2**31 - 1])
    keys = _keys(seed, position)
    assert torch.equal(torch.from_numpy(random_bits(tokens.numpy(), *keys)), random_bits_on_device(tokens, *keys))
    assert random_bits.py_func(tokens.numpy(), *keys).tolist() == random_bits_on_device(tokens, *keys).tolist()


def test_neighbouring_positions_and_seeds_are_independent_for_one_token():
    one = torch.tensor([5])
    series = np.array([float(gumbel(1, position, one)) for position in range(4000)])
    assert kstest(series, "gumbel_r").pvalue > 0.001
    assert abs(np.corrcoef(series[1:], series[:-1])[0, 1]) < 0.06
    seeds = np.array([float(gumbel(seed, 1, one)) for seed in range(4000)])
    assert kstest(seeds, "gumbel_r").pvalue > 0.001


@pytest.mark.slow
def test_a_sample_through_trees_with_siblings_keeps_the_distribution():
    """50,000 draws of two tokens, most of them through drafted siblings, against the product of the target's rows."""
    rng = np.random.default_rng(0)
    first = torch.from_numpy(rng.normal(0, 1.5, VOCABULARY))
    second = torch.from_numpy(rng.normal(0, 1.5, (VOCABULARY, VOCABULARY)))
    sampling = SamplingParams(temperature=0.8)
    likely = torch.argsort(first, descending=True)[:4].tolist()
    tokens, parents = [0, *likely], [-1, 0, 0, 0, 0]
    for index, token in enumerate(likely[:2]):
        for follower in torch.argsort(second[token], descending=True)[:3].tolist():
            tokens.append(follower)
            parents.append(1 + index)
    tree = tree_of(tokens, parents)
    third = torch.zeros(VOCABULARY)

    def row(node: int) -> torch.Tensor:
        return (first, second[tree.tokens[node]], third)[tree.depth[node]]

    def sample(seed: int, node: int, emitted: int) -> int:
        return choose(row(node), sampling, seed, emitted)

    counts = np.zeros((VOCABULARY, VOCABULARY))
    accepted = 0
    for seed in range(50_000):
        walk = walk_exact(tree, partial(sample, seed))
        answer = list(walk.tokens)
        accepted += walk.accepted
        if len(answer) == 1:
            answer.append(choose(second[answer[0]], sampling, seed, 1))
        counts[answer[0], answer[1]] += 1
    expected = torch.softmax(first / 0.8, 0)[:, None] * torch.softmax(second / 0.8, 1)
    assert accepted > 25_000
    assert chisquare(counts.ravel(), expected.numpy().ravel() * 50_000).pvalue > 0.001


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (SamplingParams(1.0, top_k=2), {0, 1}),
        (SamplingParams(1.0, top_p=0.75), {0, 1}),
        (SamplingParams(1.0, top_p=0.01), {0}),
        (SamplingParams(1.0, min_p=0.3), {0, 1}),
        (SamplingParams(1.0, top_k=3, min_p=0.3), {0, 1}),
        (SamplingParams(1.0, top_k=99, top_p=1.0), {0, 1, 2, 3}),
    ],
)
def test_filters_keep_exactly_what_they_name(sampling: SamplingParams, allowed: set[int]):
    logits = torch.tensor([0.5, 0.3, 0.14, 0.06]).log()
    assert {choose(logits, sampling, seed, 0) for seed in range(400)} == allowed


def test_a_nucleus_that_reaches_top_p_exactly_takes_no_further_token():
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0], dtype=torch.float64)
    reached = torch.cumsum(torch.exp(logits - torch.logsumexp(logits, 0)), 0)
    for size in (1, 2, 3, 4):
        exactly = SamplingParams(1.0, top_p=float(reached[size - 1]))
        above = SamplingParams(1.0, top_p=math.nextafter(exactly.top_p, 1.0))
        for sampling, kept in ((exactly, size), (above, size + 1)):
            assert torch.isfinite(narrowed(logits, sampling)).tolist() == [place < kept for place in range(5)]


def test_filters_keep_ties_and_ids_of_a_large_vocabulary():
    logits = torch.full((5000,), -5.0)
    logits[[100, 4000, 4999]] = 2.0
    drawn = {choose(logits, SamplingParams(1.0, top_k=1), seed, 0) for seed in range(60)}
    assert drawn == {100, 4000, 4999}
    flat = torch.zeros(5000)
    assert len({choose(flat, SamplingParams(1.0, top_p=0.5), seed, 0) for seed in range(50)}) > 40


def test_padded_rows_of_minus_infinity_are_never_drawn():
    logits = torch.tensor([0.0, -math.inf, 0.0])
    assert {choose(logits, SamplingParams(2.0), seed, 0) for seed in range(100)} == {0, 2}
