"""What one step comes to: counts of the sessions that emitted, and of nobody else."""

from __future__ import annotations

from app.engine.events import SOURCE_NAMES, StepRecord
from csd.verify import Walk
from racer.tree import DraftTree, Source


class Tally:
    """Adds up a step, session after session.

    accepted, nodes: per session. by_source: emitted tokens.
    """

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.nodes: list[int] = []
        self.by_source = [0] * len(SOURCE_NAMES)
        self._rescues = self._nominated = self._refused = 0

    def add(self, tree: DraftTree, walk: Walk, kept: int) -> None:
        """A session verified this tree and emitted `kept` tokens of the walk. The last of them counts as the target's own."""
        self.accepted.append(kept - 1)
        self.nodes.append(len(tree))
        for source in (*walk.sources[: kept - 1], Source.TARGET):
            self.by_source[source] += 1
        self._rescues += sum(place < kept for place in walk.rescued)
        self._nominated += walk.nominated
        self._refused += walk.refused_by_gate

    def record(self, phases: dict[str, float], seconds: float, plain_seconds: float) -> StepRecord:
        """phases: seconds of each. seconds, plain_seconds: of the step, and of plain decoding for the same tokens."""
        return StepRecord(
            sessions=len(self.accepted),
            drafts=sum(nodes > 1 for nodes in self.nodes),
            nodes=sum(self.nodes),
            drafted=sum(self.nodes) - len(self.nodes),
            accepted_lengths=tuple(self.accepted),
            emitted_by_source=dict(zip(SOURCE_NAMES, self.by_source, strict=True)),
            phase_seconds=phases,
            rescues=self._rescues,
            nominated=self._nominated,
            refused_by_gate=self._refused,
            budgets=tuple(self.nodes),
            seconds=seconds,
            plain_seconds=plain_seconds,
        )
