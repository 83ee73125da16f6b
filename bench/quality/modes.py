"""What the quality harness compares, by the names of the paper's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.engine.request import SpeculationParams
from bench.errors import BenchError

PLAIN = "plain"
GAMMA = 6  # the paper's draft length


@dataclass(frozen=True, slots=True)
class QualityMode:
    """One row of a table. needs_draft: whether a draft model has to be loaded."""

    name: str
    speculation: SpeculationParams
    needs_draft: bool = False


CHAIN = SpeculationParams("draft_model", max_nodes=GAMMA + 1, fixed_budget=True)
MODES = {
    mode.name: mode
    for mode in (
        QualityMode(PLAIN, SpeculationParams("none")),
        QualityMode("sd", CHAIN, True),
        QualityMode("csd", replace(CHAIN, verifier="csd", rule="both"), True),
        QualityMode("ocm", replace(CHAIN, verifier="csd", rule="ocm"), True),
        QualityMode("scg", replace(CHAIN, verifier="csd", rule="scg"), True),
        QualityMode("static", replace(CHAIN, verifier="csd", rule="static"), True),
        QualityMode("racer", SpeculationParams("racer")),
        QualityMode("racer+csd", SpeculationParams("racer", verifier="csd", rule="both")),
        QualityMode("hybrid", SpeculationParams("hybrid"), True),
        QualityMode("hybrid+csd", SpeculationParams("hybrid", verifier="csd", rule="both"), True),
    )
}


def parse(names: str, *, draft: bool) -> list[QualityMode]:
    """The modes named, plain first. Raises BenchError for an unknown one and for one that needs a draft model."""
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if name not in MODES:
            raise BenchError(f"unknown mode {name!r}; the modes are {', '.join(MODES)}")
        if MODES[name].needs_draft and not draft:
            raise BenchError(f"mode {name} needs a draft model: give --draft")
    return [MODES[name] for name in dict.fromkeys([PLAIN, *asked])]


def names(modes: Sequence[QualityMode]) -> list[str]:
    return [mode.name for mode in modes]
