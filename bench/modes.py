"""Modes: what is compared, from the command line's `plain,paper:64,auto,hf-pld`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from bench.errors import BenchError
from racer.drafter import Policy

PLAIN = "plain"
PeerName = Literal["hf-plain", "hf-pld", "hf-assisted"]
PAPER_NODES = 64
# Nodes, root included, where a mode names none; None leaves it to the engine.
DEFAULT_NODES: dict[str, int | None] = {"auto": None, "pld": 11, "recycling": 81}
MAX_NODES = 1024


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to decode. name: as given. policy None without a peer is plain; nodes None is the engine's default.

    peer: a way of transformers' `generate` on the same weights, for which policy and nodes are None.
    """

    name: str
    policy: Policy | None = None
    nodes: int | None = None
    peer: PeerName | None = None


def parse_modes(names: Sequence[str]) -> tuple[Mode, ...]:
    """The modes named, without repeats; plain comes first where it is not named, since all else is measured against it.

    Raises BenchError for a mode that is unknown, with the ones that are known.
    """
    modes: dict[str, Mode] = {}
    for name in [part.strip() for given in names for part in given.split(",") if part.strip()]:
        modes.setdefault(name, _mode(name))
    if not modes:
        raise BenchError(f"no mode is named; {_known()}")
    if PLAIN not in modes:
        modes = {PLAIN: Mode(PLAIN), **modes}
    return tuple(modes.values())


def _mode(name: str) -> Mode:
    if name == PLAIN:
        return Mode(name)
    if name in get_args(PeerName):
        return Mode(name, peer=cast("PeerName", name))
    policy, colon, number = name.partition(":")
    if policy not in get_args(Policy):
        raise BenchError(f"unknown mode {name!r}; {_known()}")
    nodes = DEFAULT_NODES.get(policy, PAPER_NODES)
    if colon:
        if not number.isascii() or not number.isdigit() or not 1 <= int(number) <= MAX_NODES:
            raise BenchError(f"mode {name!r}: the number of nodes must lie in 1 to {MAX_NODES}")
        nodes = int(number)
    return Mode(name, policy=cast("Policy", policy), nodes=nodes)


def _known() -> str:
    return f"the modes are {PLAIN}, {', '.join(get_args(Policy))} (each also with :NODES), {', '.join(get_args(PeerName))}"
