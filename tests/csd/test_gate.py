"""The rules, on logits made by hand."""

import math

import pytest

from csd.gate import CsdRule, StaticRule, gate
from csd.memory import CorrectionMemory


def memory_with(count: int) -> CorrectionMemory:
    memory = CorrectionMemory()
    memory.record(1, 2, times=count)
    return memory


def test_gate_is_a_difference_of_raw_logits():
    assert gate(math.log(0.01), 0.0, 0.01)
    assert gate(100.0 - 4.6, 100.0, 0.01)
    assert not gate(100.0 - 4.61, 100.0, 0.01)
    assert gate(3.0, 2.0, 1.0)
    assert gate(2.0, 2.0, 1.0)
    assert not gate(2.0 - 1e-9, 2.0, 1.0)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_gate_refuses_what_is_no_logit(value):
    assert not gate(value, 0.0, 0.01)
    assert not gate(value, value, 0.01)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"lambda_": -1}, "lambda"),
        ({"lambda_": math.nan}, "lambda"),
        ({"tau": 0}, "tau"),
        ({"tau": 1.01}, "tau"),
        ({"tau": -0.1}, "tau"),
        ({"tau": math.nan}, "tau"),
        ({"use_memory": False, "use_gate": False}, "use_memory"),
    ],
)
def test_bad_settings_are_named(arguments, field):
    with pytest.raises(ValueError, match=field):
        CsdRule(**arguments)


@pytest.mark.parametrize("threshold", [0, -1, 1.1, math.nan])
def test_bad_threshold_is_named(threshold):
    with pytest.raises(ValueError, match="threshold"):
        StaticRule(threshold)


def test_the_limits_are_allowed():
    CsdRule(lambda_=0, tau=1)
    CsdRule(lambda_=math.inf)
    StaticRule(1)


def test_the_memory_nominates_above_lambda_only():
    rule = CsdRule()
    assert not rule.nominates(memory_with(6), 1, 2)
    assert rule.nominates(memory_with(7), 1, 2)
    assert not rule.nominates(memory_with(7), 2, 1)
    assert not rule.nominates(None, 1, 2)
    assert not CsdRule(lambda_=0).nominates(CorrectionMemory(), 1, 2)
    assert not CsdRule(lambda_=math.inf).nominates(memory_with(10**9), 1, 2)


def test_ocm_only_and_scg_only():
    ocm, scg = CsdRule(use_gate=False), CsdRule(use_memory=False)
    assert not ocm.nominates(memory_with(6), 1, 2)
    assert ocm.admits(-50.0, 50.0)
    assert scg.nominates(None, 1, 2)
    assert scg.admits(-4.6, 0.0)
    assert not scg.admits(-4.7, 0.0)


def test_on_a_row_that_a_request_has_changed_every_rule_has_its_gate():
    for rule in (CsdRule(), CsdRule(use_gate=False), CsdRule(use_memory=False)):
        assert rule.admits(-4.6, 0.0, changed=True)
        assert not rule.admits(-4.7, 0.0, changed=True)
        assert not rule.admits(-math.inf, 0.0, changed=True)


def test_the_static_rule_is_a_gate_without_a_memory():
    rule = StaticRule()
    assert rule.nominates(None, 1, 2)
    assert rule.admits(5.0 + math.log(0.61), 5.0)
    assert not rule.admits(5.0 + math.log(0.59), 5.0)
