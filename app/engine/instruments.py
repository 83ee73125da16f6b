"""What calibration, benchmarks and tests ask of a loaded engine, beside answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.engine.cost.prior import PriorRows
from app.engine.decoder import Decoder
from app.engine.drafters import Drafters
from app.engine.forward.target import Target
from app.engine.learning import Learning
from app.engine.scheduler.scheduler import Scheduler
from csd.verify import Walk


class Instruments:
    """For reading, listening and measuring."""

    def __init__(self, decoder: Decoder, drafters: Drafters, prior: PriorRows | None, scheduler: Scheduler) -> None:
        self._decoder = decoder
        self._drafters = drafters
        self._prior = prior
        self._scheduler = scheduler

    @property
    def cost_curve(self) -> list[tuple[int, float]] | None:
        """(rows, seconds) of a step as measured and corrected so far; None where only plain decoding runs."""
        costs = self._decoder.costs
        return None if costs is None else costs.curve.points

    def both_models(self) -> tuple[Target, Target, int]:
        """Target, draft model, and the number of ids that mean the same in both: for offline reading, while nothing runs.

        Without a draft model the target stands for both.
        """
        target, draft = self._decoder.target, self._decoder.draft_model
        return (target, target, self._decoder.vocab_size) if draft is None else (target, draft.packed, draft.shared.size)

    @contextmanager
    def listening(self, listener: Callable[[Walk, list[float]], None]) -> Iterator[None]:
        """Let `listener` hear of every exact walk and the logit gaps of its divergences, on the worker thread."""
        self._decoder.listener = listener
        try:
            yield
        finally:
            self._decoder.listener = None

    @contextmanager
    def costs_held(self) -> Iterator[None]:
        """Let no step correct what steps are thought to cost: for runs that this is to be compared with."""
        costs = self._decoder.costs
        if costs is None:
            yield
            return
        refine, costs.refine = costs.refine, False
        try:
            yield
        finally:
            costs.refine = refine

    @property
    def learning(self) -> Learning:
        """What the engine learns, as it stands; it goes on changing while requests run."""
        decoder, draft = self._decoder, self._decoder.draft_model
        return Learning(
            self._drafters.shared,
            self._drafters.shared_csd,
            decoder.costs,
            decoder.drafting.throughput,
            None if draft is None else draft.acceptance,
            None if draft is None else draft.curve,
        )

    @contextmanager
    def taught_by(self, learning: Learning) -> Iterator[None]:
        """Let requests use and teach this in place of the engine's own. Enter and leave it while nothing runs."""
        own = self.learning
        self._install(learning)
        try:
            yield
        finally:
            self._install(own)

    def _install(self, learning: Learning) -> None:
        decoder, draft = self._decoder, self._decoder.draft_model
        self._drafters.shared, self._drafters.shared_csd = learning.shared, learning.shared_csd
        decoder.costs, decoder.drafting.throughput = learning.costs, learning.throughput
        if draft is not None and learning.draft_acceptance is not None:
            draft.acceptance, draft.curve = learning.draft_acceptance, learning.draft_curve

    def settle(self, timeout: float | None = None, hear: Callable[[int, int], None] | None = None) -> bool:
        """Wait until nothing is left to prepare in idle time (app.engine.cost.prior); False if that does not come about.

        timeout: seconds after which to give up. hear: told how many prior rows of how many are known, whenever that changes.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        told = -1
        while self._prior is not None and not self._prior.complete:
            if hear is not None and self._prior.done != told:
                told = self._prior.done
                hear(told, self._prior.wanted)
            if not self._scheduler.prepares or (deadline is not None and time.monotonic() > deadline):
                return False
            time.sleep(0.02)
        return True
