"""Modes: what is compared, from the command line's `plain,paper:64,auto,hf-pld`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from bench.errors import BenchError
from racer.drafter import Policy

PLAIN = "plain"
DraftedName = Literal["draft_model", "hybrid"]
PeerName = Literal["hf-plain", "hf-pld", "hf-assisted"]
PAPER_NODES = 64
# Nodes, root included, where a mode names none; None leaves it to the engine.
DEFAULT_NODES: dict[str, int | None] = {"auto": None, "pld": 11, "recycling": 81}
MAX_NODES = 1024
MAX_GAMMA = 64
MODES = (
    f"{PLAIN}, {', '.join(get_args(Policy))}, hybrid (each also with :NODES), draft_model (also with :GAMMA), "
    f"{', '.join(get_args(PeerName))}"
)


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to decode. name: as given. Without policy, drafted and peer it is plain; nodes None is the engine's default.

    peer: a way of transformers' `generate` on the same weights, for which policy and nodes are None. drafted: a way that asks
    the draft model. gamma: the length of a draft_model chain, where it is fixed.
    """

    name: str
    policy: Policy | None = None
    nodes: int | None = None
    peer: PeerName | None = None
    drafted: DraftedName | None = None
    gamma: int | None = None

    @property
    def needs_draft(self) -> bool:
        """Whether it cannot run without a draft model."""
        return self.drafted is not None or self.peer == "hf-assisted"

    @property
    def plain(self) -> bool:
        return self.policy is None and self.drafted is None and self.peer is None


def parse_modes(names: Sequence[str]) -> tuple[Mode, ...]:
    """The modes named, without repeats; plain comes first where it is not named, since all else is measured against it.

    Raises BenchError for a mode that is unknown, with the ones that are known.
    """
    modes: dict[str, Mode] = {}
    for name in [part.strip() for given in names for part in given.split(",") if part.strip()]:
        modes.setdefault(name, _mode(name))
    if not modes:
        raise BenchError(f"no mode is named; the modes are {MODES}")
    if PLAIN not in modes:
        modes = {PLAIN: Mode(PLAIN), **modes}
    return tuple(modes.values())


def _mode(name: str) -> Mode:
    if name == PLAIN:
        return Mode(name)
    if name in get_args(PeerName):
        return Mode(name, peer=cast("PeerName", name))
    policy, colon, number = name.partition(":")
    if policy in get_args(DraftedName):
        return _drafted(name, cast("DraftedName", policy), number if colon else None)
    if policy not in get_args(Policy):
        raise BenchError(f"unknown mode {name!r}; the modes are {MODES}")
    nodes = DEFAULT_NODES.get(policy, PAPER_NODES)
    if colon:
        nodes = _number(name, number, MAX_NODES, "the number of nodes")
    return Mode(name, policy=cast("Policy", policy), nodes=nodes)


def _drafted(name: str, drafted: DraftedName, number: str | None) -> Mode:
    if number is None:
        return Mode(name, drafted=drafted)
    if drafted == "hybrid":
        return Mode(name, nodes=_number(name, number, MAX_NODES, "the number of nodes"), drafted=drafted)
    gamma = _number(name, number, MAX_GAMMA, "the length of the chain")
    return Mode(name, nodes=gamma + 1, drafted=drafted, gamma=gamma)


def _number(name: str, number: str, most: int, what: str) -> int:
    if not number.isascii() or not number.isdigit() or not 1 <= int(number) <= most:
        raise BenchError(f"mode {name!r}: {what} must lie in 1 to {most}")
    return int(number)
