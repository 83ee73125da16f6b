"""What calibration, benchmarks and tests read and change in a loaded engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.engine.cost.prior import PriorRows
from app.engine.cost.steps import StepCosts
from app.engine.decoder import Decoder
from app.engine.draft.control import DraftAcceptance, Throughput
from app.engine.drafters import Drafters
from app.engine.forward.target import Target
from app.engine.scheduler.scheduler import Scheduler
from csd.verify import Walk
from racer.auto import Shared
from racer.budget import CostCurve


@dataclass(frozen=True, slots=True)
class Learning:
    """What decoding teaches an engine about its models and its machine: nothing of anyone's text.

    Acceptance by class, for exact and for csd; step costs; the throughput of the last steps.

    The draft_ fields are None without a draft model, costs where only plain decoding runs.
    """

    shared: Shared
    shared_csd: Shared
    costs: StepCosts | None
    throughput: Throughput
    draft_acceptance: DraftAcceptance | None = None
    draft_curve: CostCurve | None = None

    def fresh(self) -> Learning:
        """The state at the engine's start, with the same prior rows: those belong to the model."""
        prior = self.shared.prior_ids, self.shared.prior_probs
        return Learning(
            Shared(*prior),
            Shared(*prior),
            None if self.costs is None else self.costs.fresh(),
            Throughput(),
            None if self.draft_acceptance is None else DraftAcceptance(),
            None if self.draft_curve is None else self.draft_curve.fresh(),
        )


class Instruments:
    """An engine's measurements and learning, for reading and for replacing."""

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
        """Target, draft model, and the number of ids that mean the same in both. Use them only while no request runs.

        Without a draft model the target stands for both.
        """
        target, draft = self._decoder.target, self._decoder.draft_model
        return (target, target, self._decoder.vocab_size) if draft is None else (target, draft.packed, draft.shared.size)

    @contextmanager
    def listening(self, listener: Callable[[Walk, list[float]], None]) -> Iterator[None]:
        """Call `listener` with every exact walk and the logit gaps of its divergences, on the worker thread."""
        self._decoder.listener = listener
        try:
            yield
        finally:
            self._decoder.listener = None

    @contextmanager
    def fixed_costs(self) -> Iterator[None]:
        """Steps do not correct the cost curve meanwhile, so that runs can be compared with each other."""
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
        """What the engine has learnt. It goes on changing while requests run."""
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
    def using(self, learning: Learning) -> Iterator[None]:
        """Requests use and change this learning in place of the engine's own. Enter and leave while no request runs."""
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
        """Wait until the work for idle time (app.engine.cost.prior) is done; False if it will not be, or at the timeout.

        timeout: seconds. hear: called with the numbers of prior rows done and wanted, whenever the first changes.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        heard = -1
        while self._prior is not None and not self._prior.complete:
            if hear is not None and self._prior.done != heard:
                heard = self._prior.done
                hear(heard, self._prior.wanted)
            if not self._scheduler.prepares or (deadline is not None and time.monotonic() > deadline):
                return False
            time.sleep(0.02)
        return True
