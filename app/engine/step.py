"""One verify step: what each session proposed, what was kept of it, and all that is counted of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch

from app.engine.drafting import Proposal
from app.engine.events import PHASES, SOURCE_NAMES, Delta, StepRecord
from app.engine.sampling.logits import Successors
from app.engine.session import Session
from csd.verify import Walk
from racer.tree import DraftTree

NOTHING = Delta((), "", ())

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@dataclass(slots=True)
class Step:
    """One session's part of a verify step.

    logits [n, vocabulary] and top: of the n nodes of its tree, raw. walk: what verification keeps. emitted: what its client was
    sent, the walk cut where the answer ends; nothing until it is committed, and where that fails.
    """

    proposal: Proposal
    logits: torch.Tensor
    top: Successors
    walk: Walk
    emitted: Delta = NOTHING

    @property
    def session(self) -> Session:
        return self.proposal.session

    @property
    def tree(self) -> DraftTree:
        return self.proposal.tree

    @property
    def tokens(self) -> tuple[int, ...]:
        """Emitted tokens; tokens[i] came after path[i]."""
        return self.emitted.token_ids

    @property
    def path(self) -> tuple[int, ...]:
        """Nodes kept, root first: one for each emitted token."""
        return self.walk.path[: len(self.tokens)]

    def count(self) -> None:
        """Add it to what its generation has counted."""
        counts, accepted = self.session.answer.counts, len(self.tokens) - 1
        counts.steps += 1
        counts.drafted += len(self.tree) - 1
        counts.accepted += accepted
        counts.histogram.extend([0] * (accepted + 1 - len(counts.histogram)))
        counts.histogram[accepted] += 1
        counts.rescues += len(self.emitted.rescued)
        counts.refused_by_gate += self.walk.refused_by_gate
        for source in self.emitted.sources:
            counts.by_source[source] += 1


@dataclass(frozen=True, slots=True)
class StepResult:
    """A verify step of all sessions. steps: of those that emitted. rows: verified, also of those that failed.

    phases: seconds by name. seconds: of the whole step.
    """

    steps: Sequence[Step]
    rows: int
    phases: dict[str, float]
    seconds: float

    @property
    def emitted(self) -> int:
        return sum(len(step.tokens) for step in self.steps)

    def record(self, plain_seconds: float) -> StepRecord:
        """What an observer hears. plain_seconds: of plain decoding for the same tokens."""
        nodes = [len(step.tree) for step in self.steps]
        by_source = dict.fromkeys(SOURCE_NAMES, 0)
        for step in self.steps:
            for source in step.emitted.sources:
                by_source[source] += 1
        return StepRecord(
            sessions=len(self.steps),
            drafts=sum(n > 1 for n in nodes),
            nodes=sum(nodes),
            drafted=sum(nodes) - len(nodes),
            accepted_lengths=tuple(len(step.tokens) - 1 for step in self.steps),
            emitted_by_source={name: by_source[name] for name in SOURCE_NAMES},
            phase_seconds=self.phases,
            rescues=sum(len(step.emitted.rescued) for step in self.steps),
            nominated=sum(step.walk.nominated for step in self.steps),
            refused_by_gate=sum(step.walk.refused_by_gate for step in self.steps),
            budgets=tuple(nodes),
            seconds=self.seconds,
            plain_seconds=plain_seconds,
        )


class Stopwatch:
    """Seconds by phase of one step."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._clock = clock
        self._started = clock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = self._clock()
        try:
            yield
        finally:
            self.seconds[name] += self._clock() - started

    @property
    def elapsed(self) -> float:
        """Seconds since it was made."""
        return self._clock() - self._started


class Timed(Protocol):
    """Has a watch for the step under way."""

    watch: Stopwatch


_Self = TypeVar("_Self", bound=Timed)
_Method = Callable[Concatenate[_Self, _Arguments], _Result]


def phase(name: str) -> Callable[[_Method[_Self, _Arguments, _Result]], _Method[_Self, _Arguments, _Result]]:
    """Count the time of a method as this phase of the step."""

    def decorate(method: _Method[_Self, _Arguments, _Result]) -> _Method[_Self, _Arguments, _Result]:
        def timed(self: _Self, /, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
            with self.watch.phase(name):
                return method(self, *arguments, **named)

        return timed

    return decorate
