"""How long a draft may get: what the target does with the draft model's tokens, learnt online, against what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from racer.budget import CostCurve

LONGEST = 16  # tokens of a chain whose length is not fixed
CLASSES = 8  # by the draft model's probability of its own token
CLASS_PRIOR = 12.0  # trials that the probability itself, taken for the acceptance, is worth in a cell
MEMORY = 5_000.0  # trials after which a cell forgets half
SESSION_PRIOR = 8.0  # judged tokens that a session's own record must outweigh
FADE = 0.95  # of a session's record with each judged token
REST = 0.98  # of a session's record with each step that does not draft, so that drafting is tried again
LATELY = 0.95  # what a step leaves of the weight of those before it
START_RATE, START_TRIALS = 0.7, 20.0  # acceptance before anything is known


@dataclass(slots=True)
class Record:
    """How a session's drafted tokens fared lately: hits among trials, decayed."""

    hits: float = 0.0
    trials: float = 0.0

    def count(self, hit: bool) -> None:
        self.hits = self.hits * FADE + hit
        self.trials = self.trials * FADE + 1.0

    def rest(self) -> None:
        self.hits *= REST
        self.trials *= REST


class DraftAcceptance:
    """The probability that the target takes a drafted token, given that it took those before. Shared by all sessions.

    Tokens are grouped by their probability under the draft model, by whether they were sampled or the likeliest, and by whether
    the session's own drafter proposed them too. Only counts are kept. One user at a time.
    """

    def __init__(self) -> None:
        middle = (np.arange(CLASSES) + 0.5) / CLASSES
        self._cells = np.zeros((2, 2, CLASSES, 2))
        self._cells[..., 0] = CLASS_PRIOR * middle
        self._cells[:, 1, :, 0] = CLASS_PRIOR * (1.0 - (1.0 - middle) * 0.7)
        self._cells[..., 1] = CLASS_PRIOR
        self._all = np.array([[START_RATE * START_TRIALS, START_TRIALS]] * 2)

    def chance(self, sampled: bool, agreed: bool, probability: float) -> float:
        hits, trials = self._cells[int(sampled), int(agreed), _class(probability)]
        return float(min(hits / trials, 0.995))

    def average(self, sampled: bool, record: Record) -> float:
        """Of the session's next token, before the draft model is asked."""
        hits, trials = self._all[int(sampled)]
        return float((record.hits + SESSION_PRIOR * hits / trials) / (record.trials + SESSION_PRIOR))

    def count(self, sampled: bool, agreed: bool, probability: float, hit: bool) -> None:
        for counts in (self._cells[int(sampled), int(agreed), _class(probability)], self._all[int(sampled)]):
            counts[:] = counts * (0.5 if counts[1] >= MEMORY else 1.0) + (hit, 1.0)


def _class(probability: float) -> int:
    return min(int(probability * CLASSES), CLASSES - 1)


class Throughput:
    """Tokens a second of the last steps, by what the curves say that they cost, so that equal curves decide alike."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0  # per session and step, decayed

    def rate(self, sessions: int) -> float:
        """Of this many sessions together; 0 before anything is known."""
        return sessions * self._tokens / self._seconds if self._seconds else 0.0

    def add(self, sessions: int, tokens: int, seconds: float) -> None:
        self._tokens = self._tokens * LATELY + tokens / sessions
        self._seconds = self._seconds * LATELY + seconds


class StepForecast:
    """Expected tokens and seconds of one step of all sessions, while it is being drafted."""

    def __init__(self, target: CostCurve, draft: CostCurve, rows: int, tokens: float, rate: float = 0.0) -> None:
        """What rows cost in a forward of target and draft; what the step verifies and brings so far: rows and tokens.

        rate: tokens a second of the last steps. What a step with poor prospects takes must earn at least that.
        """
        self._target, self._draft = target, draft
        self._rows, self._tokens = rows, tokens
        self._rate = rate
        self._drafted = 0.0  # seconds

    @property
    def drafted(self) -> float:
        """Seconds of the draft model's forwards so far."""
        return self._drafted

    def pays(self, rivals: Sequence[float], reached: float, rate: float, most: int, company: int, *, grows: bool) -> bool:
        """Whether some number of further tokens, up to `most`, earns more than the time it takes would otherwise bring.

        rivals[d]: probability that the session's own tree is accepted d + 1 tokens beyond where the chain ends; it brings that
        much anyway. reached: probability that the chain is accepted as far as it goes. rate: of each further token. company:
        sessions that share a forward of the draft model. grows: whether a token adds a row to verify.
        """
        if most < 1:
            return False
        steps = np.arange(1, most + 1)
        gains = reached * rate**steps
        gains[: len(rivals)] -= rivals[:most]
        gained = np.cumsum(np.maximum(gains, 0.0))
        costs = self._target.table(self._rows + most)
        rows = costs[self._rows + steps] if grows else costs[self._rows]
        each = float(self._draft.table(company)[company]) / company
        now = costs[self._rows]
        earned = max(self._rate, self._tokens / (now + self._drafted))  # tokens a second
        return bool(np.max(gained - earned * (rows - now + steps * each)) > 0.0)

    def add(self, gain: float, *, grows: bool) -> None:
        """Take in a token that was drafted."""
        self._tokens += max(0.0, gain)
        self._rows += int(grows)

    def spend(self, rows: int) -> None:
        """Take in a forward of the draft model."""
        self._drafted += float(self._draft.table(rows)[rows])
