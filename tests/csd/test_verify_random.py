"""The walk over random draft trees: exact where nothing may be rescued, and every rescue follows the rule."""

import math

import numpy as np
from hypothesis import find, given
from hypothesis import strategies as st

from csd.gate import CsdRule, StaticRule
from csd.verify import walk_csd, walk_exact
from racer.tree import DraftTree
from tests.csd.walks import NOTHING, Target, remembering, tree_of

VOCABULARY = 12


@st.composite
def trees(draw) -> DraftTree:
    tokens, parents = [draw(st.integers(0, VOCABULARY - 1))], [-1]
    taken: set[tuple[int, int]] = set()
    for _ in range(draw(st.integers(0, 20))):
        edge = (draw(st.integers(0, len(tokens) - 1)), draw(st.integers(0, VOCABULARY - 1)))
        if edge not in taken:
            taken.add(edge)
            parents.append(edge[0])
            tokens.append(edge[1])
    return tree_of(tokens, parents)


everything = remembering(*((a, b) for a in range(VOCABULARY) for b in range(VOCABULARY) if a != b), times=1000)


def model_for(tree: DraftTree, seed: int) -> Target:
    """Distinct random logits at every node."""
    rng = np.random.default_rng(seed)
    return Target({node: dict(enumerate(rng.permutation(VOCABULARY) * 0.7)) for node in range(len(tree))})


@given(trees(), st.integers(0, 2**32 - 1))
def test_lambda_infinity_and_tau_one_are_exact(tree, seed):
    model = model_for(tree, seed)
    exact = walk_exact(tree, model.choose, record=True)
    assert model.walk(tree, CsdRule(lambda_=math.inf), everything) == exact
    assert model.asked == []
    for rule in (CsdRule(tau=1), CsdRule(tau=1, use_memory=False), StaticRule(1)):
        walk = model.walk(tree, rule, everything)
        assert (walk.path, walk.tokens, walk.sources, walk.rescued) == (exact.path, exact.tokens, exact.sources, ())
        assert walk.refused_by_gate == walk.nominated


@given(trees(), st.integers(0, 2**32 - 1))
def test_with_lambda_infinity_a_sampled_walk_is_exact(tree, seed):
    drawn = np.random.default_rng(seed).integers(0, VOCABULARY, (len(tree), 30))

    def sampled(node: int, emitted: int) -> int:
        return int(drawn[node, emitted])

    model = model_for(tree, seed)
    walk = walk_csd(tree, sampled, model.read, CsdRule(lambda_=math.inf), everything, NOTHING)
    assert walk == walk_exact(tree, sampled, record=True)


@given(trees(), st.integers(0, 2**32 - 1), st.frozensets(st.integers(0, VOCABULARY - 1)))
def test_a_walk_is_a_path_whose_every_token_is_the_targets_or_a_justified_rescue(tree, seed, protected):
    model = model_for(tree, seed)
    rule = CsdRule(tau=0.1)
    walk = model.walk(tree, rule, everything, protected)
    assert len(walk.tokens) == len(walk.sources) == len(walk.path)
    for place, node in enumerate(walk.path):
        chosen, kept = model.likeliest(node), walk.tokens[place]
        if place + 1 < len(walk.path):
            child = walk.path[place + 1]
            assert (tree.parents[child], tree.tokens[child], tree.source[child]) == (node, kept, walk.sources[place])
        if place in walk.rescued:
            assert tree.child_with(node, chosen) < 0
            assert not {chosen, kept} & protected
            assert rule.admits(model.rows[node][kept], model.rows[node][chosen])
        else:
            assert kept == chosen
    assert walk.tokens[: len(walk_exact(tree, model.choose).tokens) - 1] == walk_exact(tree, model.choose).tokens[:-1]


def test_some_of_such_walks_rescue():
    drawn = st.tuples(trees(), st.integers(0, 2**32 - 1))
    find(drawn, lambda case: bool(model_for(*case).walk(case[0], CsdRule(tau=0.1), everything).rescued))
