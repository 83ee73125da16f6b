"""Modes as they are named on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from bench.errors import BenchError
from bench.modes import Mode, parse_modes
from racer.drafter import Policy
from tests.bench.support import plan


def test_every_policy_and_peer_is_a_mode() -> None:
    for policy in get_args(Policy):
        assert [mode.policy for mode in parse_modes([f"plain,{policy},{policy}:9"])] == [None, policy, policy]
    peers = parse_modes(["hf-plain,hf-pld,hf-assisted"])
    assert [mode.peer for mode in peers] == [None, "hf-plain", "hf-pld", "hf-assisted"]


def test_nodes_have_defaults_and_can_be_given() -> None:
    modes = {mode.name: mode.nodes for mode in parse_modes(["plain,paper,half,pld,recycling,auto,paper:16,auto:24"])}
    assert modes == {
        "plain": None,
        "paper": 64,
        "half": 64,
        "pld": 11,
        "recycling": 81,
        "auto": None,
        "paper:16": 16,
        "auto:24": 24,
    }


def test_repeats_count_once_and_plain_is_always_there() -> None:
    assert parse_modes(["auto, auto", "pld"]) == (Mode("plain"), Mode("auto", "auto"), Mode("pld", "pld", 11))


@pytest.mark.parametrize(
    "name",
    [
        "fast",
        "paper:",
        "paper:0",
        "paper:x",
        "paper:9999",
        "plain:3",
        "hf-pld:4",
        "paper:²",
        "draft_model:0",
        "draft_model:65",
        "hybrid:",
        "hybrid:x",
        "",
    ],
)
def test_an_unknown_mode_is_refused(name: str) -> None:
    with pytest.raises(BenchError, match="mode"):
        parse_modes([name])


def test_modes_of_the_draft_model_name_its_length_or_the_nodes() -> None:
    modes = parse_modes(["draft_model,draft_model:6,hybrid,hybrid:20"])[1:]
    assert [(mode.drafted, mode.nodes, mode.gamma) for mode in modes] == [
        ("draft_model", None, None),
        ("draft_model", 7, 6),
        ("hybrid", None, None),
        ("hybrid", 20, None),
    ]


@pytest.mark.parametrize("name", ["hf-assisted", "draft_model", "draft_model:6", "hybrid", "hybrid:20"])
def test_modes_that_need_a_draft_model_are_refused_without_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(BenchError, match=f"mode {name} needs a draft model: name it with --draft"):
        plan(tmp_path / "x", name)
