"""Progress of a load test on standard error."""

from __future__ import annotations

from bench.load.sample import Sample
from bench.progress import Bar

LINES = 20  # of a whole run, where no bar shows it


class LoadBar(Bar):
    """Hears of samples. total: requests of the whole run."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._errors = 0
        self._every = max(1, total // LINES)

    def hear(self, sample: Sample) -> None:
        self._errors += sample.error is not None
        said = f"{sample.way}, {self._errors} errors"
        if not self.advance(said) and (self._done % self._every == 0 or self._done == self._total):
            self.line(said)
