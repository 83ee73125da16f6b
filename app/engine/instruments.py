"""What calibration, benchmarks and tests ask of a loaded engine, beside answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.engine.decoder import Decoder
from app.engine.draft_model import DraftModel
from app.engine.interface import ModelInfo
from app.engine.prior import PriorRows
from app.engine.target import Target
from app.engine.worker import Worker
from csd.verify import Walk


class Instruments:
    """For reading, listening and measuring. Its attributes are the engine's."""

    info: ModelInfo
    _decoder: Decoder
    _draft: DraftModel | None
    _prior: PriorRows | None
    _worker: Worker

    @property
    def cost_curve(self) -> list[tuple[int, float]] | None:
        """(rows, seconds) of a step as measured and corrected so far; None where only plain decoding runs."""
        curve = self._decoder.curve
        return None if curve is None else list(zip(curve.sizes.tolist(), curve.seconds.tolist(), strict=True))

    def both_models(self) -> tuple[Target, Target, int]:
        """Target, draft model, and the number of ids that mean the same in both: for offline reading, while nothing runs.

        Without a draft model the target stands for both.
        """
        if self._draft is None:
            return self._decoder.target, self._decoder.target, self.info.vocab_size
        return self._decoder.target, self._draft.packed, self._draft.shared.size

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
        refine, self._decoder.refine = self._decoder.refine, False
        try:
            yield
        finally:
            self._decoder.refine = refine

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to prepare in idle time (app.engine.prior); False if `timeout` seconds were too few."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._prior is not None and not self._prior.complete:
            if not self._worker.alive or (deadline is not None and time.monotonic() > deadline):
                return False
            time.sleep(0.02)
        return True
