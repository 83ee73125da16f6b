"""The walk over draft trees: rescues, refusals and what the memory learns, on a tree and logits set by hand."""

import math

import numpy as np
import pytest

from csd.gate import CsdRule, Rule, StaticRule
from csd.verify import Walk, walk_csd, walk_exact
from racer.tree import DraftTree, Source
from tests.csd.walks import NOTHING, TREE, Target, remembering, target


def test_a_rescued_child_stands_for_the_targets_token_and_the_walk_goes_on():
    model = target()
    walk = model.walk(TREE, CsdRule(), remembering((5, 1)))
    assert walk == Walk(
        path=(0, 1, 3),
        tokens=(5, 7, 2),
        sources=(Source.COPY_LOGIT, Source.RETRIEVAL, Source.TARGET),
        rescued=(0,),
        divergences=((5, 1),),
        compared=2,
        nominated=1,
    )
    assert walk.accepted == 2
    assert model.asked == [(0, [5])]


def test_a_lower_ranked_child_may_be_rescued_but_the_first_is_what_is_learnt():
    walk = target().walk(TREE, CsdRule(), remembering((6, 1)))
    assert (walk.path, walk.tokens, walk.rescued, walk.divergences) == ((0, 2, 4), (6, 8, 2), (0,), ((5, 1),))


def test_the_best_logit_wins_and_the_first_among_equals():
    model = target()
    memory = remembering((5, 1), (6, 1))
    assert model.walk(TREE, CsdRule(), memory).tokens[0] == 5
    model.rows[0][6] = 2.5
    assert model.walk(TREE, CsdRule(), memory).tokens[0] == 6
    model.rows[0][6] = 2.0
    assert model.walk(TREE, CsdRule(), memory).tokens[0] == 5


def test_without_enough_evidence_nothing_is_asked_and_the_target_speaks():
    model = target()
    walk = model.walk(TREE, CsdRule(), remembering((5, 1), times=6))
    assert walk == Walk((0,), (1,), (Source.TARGET,), divergences=((5, 1),), compared=1)
    assert model.asked == []


def test_the_gate_refuses_and_is_counted():
    model = target()
    walk = model.walk(TREE, CsdRule(tau=0.1), remembering((5, 1), (6, 1)))  # ln 0.1 = -2.3: 5 passes, 6 does not
    assert (walk.tokens[0], walk.nominated, walk.refused_by_gate) == (5, 2, 1)
    walk = model.walk(TREE, CsdRule(tau=0.5), remembering((5, 1), (6, 1)))
    assert walk == Walk((0,), (1,), (Source.TARGET,), divergences=((5, 1),), compared=1, nominated=2, refused_by_gate=2)


def test_refusals_add_up_over_the_nodes_of_a_walk():
    model = target()
    model.rows[1] = {4: 3.0, 7: 0.0}
    walk = model.walk(TREE, CsdRule(tau=0.1), remembering((5, 1), (6, 1), (7, 4)))
    assert (walk.tokens, walk.rescued) == ((5, 4), (0,))
    assert (walk.nominated, walk.refused_by_gate) == (3, 2)  # 6 at the root and 7 below it


@pytest.mark.parametrize("sampled", [1, 3])
def test_what_is_sampled_does_not_move_the_gate(sampled: int):
    model = target()
    model.rows[0] = {1: 4.0, 5: 0.0, 6: -1.0, 3: -9.0}
    model.sampled = {0: sampled}
    memory = remembering((5, 1), (6, 1), (5, 3), (6, 3))
    walk = model.walk(TREE, CsdRule(), memory)  # ln 0.01 = -4.6: 5 stands 4 below the highest, 6 stands 5
    assert (walk.tokens, walk.refused_by_gate) == ((5, 7, 2), 1)
    model.rows[0][5] = -0.7
    walk = model.walk(TREE, CsdRule(), memory)
    assert (walk.tokens, walk.refused_by_gate) == ((sampled,), 2)


@pytest.mark.parametrize("rule", [CsdRule(), CsdRule(use_gate=False), CsdRule(use_memory=False), StaticRule(0.01)])
def test_a_rescue_must_be_plausible_after_what_a_request_changes_too(rule: Rule):
    model = target()
    model.rows[0] = {1: 4.0, 5: 12.0, 6: 3.0}
    memory = remembering((5, 1), (6, 1))
    model.changed = {0: {1: 4.0, 5: 12.0 - 50.0, 6: -math.inf}}  # a bias on 5, a grammar without 6
    walk = model.walk(TREE, rule, memory)
    assert (walk.tokens, walk.rescued, walk.refused_by_gate) == ((1,), (), 2)
    model.changed = {0: {1: 4.0, 5: 1.0, 6: 2.0}}
    model.rows[0] = {1: 4.0, 5: 3.0, 6: 2.0}
    assert model.walk(TREE, rule, memory).tokens[0] == 6  # the better of the changed row


def test_what_only_a_request_makes_plausible_is_refused():
    model = target()
    model.rows[0] = {1: 4.0, 5: -30.0, 6: -30.0}
    model.changed = {0: {1: 4.0, 5: 3.9, 6: -30.0}}
    assert model.walk(TREE, CsdRule(), remembering((5, 1))).tokens == (1,)


def test_a_table_rescues_drafts_of_its_own_source_alone():
    memory = remembering((5, 1), (6, 1))  # 5 comes from copy-logit, 6 from the draft model
    for source, token in ((Source.COPY_LOGIT, 5), (Source.DRAFT_MODEL, 6), (Source.RETRIEVAL, 1), (Source.GRAMMAR, 1)):
        walk = target().walk(TREE, CsdRule(), memory, table_of=frozenset({source}))
        assert (walk.tokens[0], walk.nominated) == (token, int(token != 1))
    for rule in (CsdRule(use_memory=False), StaticRule(0.01)):  # these ask no table
        assert target().walk(TREE, rule, None, table_of=frozenset({Source.GRAMMAR})).tokens[0] == 5


def test_ocm_only_keeps_what_the_gate_would_refuse():
    model = target()
    model.rows[0][5] = -40.0
    memory = remembering((5, 1))
    assert model.walk(TREE, CsdRule(), memory).rescued == ()
    assert model.walk(TREE, CsdRule(use_gate=False), memory).rescued == (0,)


def test_scg_only_needs_no_memory():
    walk = target().walk(TREE, CsdRule(use_memory=False))
    assert (walk.tokens, walk.rescued, walk.nominated) == ((5, 7, 2), (0,), 2)


def test_the_static_rule_compares_with_the_likeliest_not_with_the_sampled():
    model = target()
    model.rows[0] = {1: 4.0, 5: 3.6, 6: 0.5, 3: 0.0}  # p(5) = 0.67 of the highest
    model.sampled = {0: 3}
    walk = model.walk(TREE, StaticRule())
    assert (walk.tokens, walk.rescued, walk.refused_by_gate) == ((5, 7, 2), (0,), 1)
    assert model.walk(TREE, StaticRule(0.7)).tokens == (3,)


@pytest.mark.parametrize("protected", [frozenset({5}), {5}, lambda token: token == 5])
def test_a_protected_token_is_never_rescued(protected):
    walk = target().walk(TREE, CsdRule(), remembering((5, 1)), protected)
    assert (walk.tokens, walk.rescued, walk.divergences) == ((1,), (), ((5, 1),))
    assert target().walk(TREE, CsdRule(), remembering((5, 1), (6, 1)), protected).tokens == (6, 8, 2)


@pytest.mark.parametrize("rule", [CsdRule(), CsdRule(use_gate=False), CsdRule(use_memory=False), StaticRule(0.01)])
def test_a_protected_token_never_gives_way(rule):
    model = target()
    walk = model.walk(TREE, rule, remembering((5, 1)), frozenset({1}))
    assert (walk.tokens, walk.rescued, walk.nominated, model.asked) == ((1,), (), 0, [])


def test_a_protected_token_that_was_drafted_is_accepted_as_ever():
    model = target()
    model.rows[0][5] = 9.0
    assert model.walk(TREE, CsdRule(), None, frozenset({5})).tokens == (5, 7, 2)


def test_several_rescues_in_one_walk():
    model = target()
    model.rows[1] = {4: 3.0, 7: 2.0}
    walk = model.walk(TREE, CsdRule(), remembering((5, 1), (7, 4)))
    assert (walk.tokens, walk.rescued, walk.divergences) == ((5, 7, 2), (0, 1), ((5, 1), (7, 4)))


def test_a_leaf_and_a_plain_step_have_nothing_to_learn():
    walk = Target({0: {3: 1.0}}).walk(DraftTree.root_only(9), CsdRule(use_memory=False))
    assert walk == Walk((0,), (3,), (Source.TARGET,))


def test_a_lower_ranked_child_the_target_chose_is_no_comparison():
    model = target()
    model.rows[0][6] = 9.0
    walk = walk_exact(TREE, model.choose, record=True)
    assert (walk.tokens, walk.divergences, walk.compared) == ((6, 8, 2), (), 1)


def test_the_exact_walk_records_only_when_asked():
    model = target()
    assert walk_exact(TREE, model.choose) == Walk((0,), (1,), (Source.TARGET,))
    assert walk_exact(TREE, model.choose, record=True).divergences == ((5, 1),)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_child_without_a_real_logit_is_not_rescued(value):
    for rule in (CsdRule(), CsdRule(use_gate=False)):
        model = target()
        model.rows[0][5] = value
        assert model.walk(TREE, rule, remembering((5, 1))).tokens == (1,)


def test_only_drafts_of_the_tables_own_source_are_reported():
    tree = DraftTree(
        np.array([9, 1, 2], np.int64),
        np.array([-1, 0, 0], np.int32),
        np.array([0, 1, 1], np.int32),
        np.array([Source.TARGET, Source.RETRIEVAL, Source.DRAFT_MODEL], np.uint8),
        np.ones(3, np.float32),
    )

    def choose(node: int, emitted: int) -> int:
        return 5

    assert walk_exact(tree, choose, record=True).divergences == ((1, 5),)
    assert walk_exact(tree, choose, record=True, table_of={Source.DRAFT_MODEL}).divergences == ()
    assert walk_exact(tree, choose, record=True, table_of={Source.RETRIEVAL}).divergences == ((1, 5),)


def test_nothing_is_learnt_where_the_request_had_a_part():
    model = target()
    asked: list[tuple[int, int, int]] = []

    def teaches(node: int, child: int, token: int) -> bool:
        asked.append((node, child, token))
        return node != 0

    memory = remembering((5, 1))
    walk = walk_csd(TREE, model.choose, model.read, CsdRule(), memory, NOTHING, teaches=teaches)
    assert (walk.tokens, walk.divergences, walk.compared) == ((5, 7, 2), (), 1)
    assert asked == [(0, 1, 1), (1, 3, 7)]
    walk = walk_exact(TREE, model.choose, record=True, teaches=teaches)
    assert (walk.divergences, walk.compared) == ((), 0)
    assert walk_exact(TREE, model.choose, record=True, teaches=lambda *_: True).divergences == ((5, 1),)
