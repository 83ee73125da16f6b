"""One request from the queue to its last event, whether it waits or runs."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from app.engine.answer import Answer
from app.engine.draft.model import DraftCache
from app.engine.events import Event, EventSink, Failed, FinishReason
from app.engine.progress import PromptProgress
from app.engine.request import GenerationRequest
from app.engine.sampling.logits_processor import LogitsProcessor
from app.text.codec import TextCodec
from csd.gate import Rule
from racer.drafter import Drafter


@dataclass(frozen=True, slots=True)
class Suspended:
    """What a generation keeps when it gives up its KV rows, to go on once its text has been read again."""

    drafter: Drafter
    draft_cache: DraftCache | None
    processor: LogitsProcessor | None
    progress: PromptProgress


class Generation:
    """A request and its answer so far. Touched by the worker thread only, but for `cancelled`."""

    def __init__(
        self,
        request: GenerationRequest,
        sink: EventSink,
        codec: TextCodec,
        budget: int,
        limit: int,
        csd_rule: Rule | None = None,
        protected: frozenset[int] = frozenset(),
    ) -> None:
        """budget: nodes a step may verify, root included. limit: tokens the answer may have, at least 1.

        csd_rule: of the verifier csd; None: exact. protected: ids that csd neither puts in nor replaces.
        """
        self.request = request
        self.answer = Answer(request, codec, limit)
        self.budget = budget
        self.csd_rule = csd_rule
        self.protected = protected
        self.seed = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
        self.cancelled = False
        self.ended = False
        self.suspended: Suspended | None = None
        self.cached_tokens = 0  # of the prompt: read in an earlier turn of the conversation
        self.admitted_at = time.monotonic()
        self.submitted_at = self.admitted_at if request.arrived_at is None else request.arrived_at
        self._sink = sink

    @property
    def text_length(self) -> int:
        """Tokens that stand in the KV cache while it decodes: the prompt, and of the answer all but the last."""
        return len(self.request.prompt_ids) + max(0, len(self.answer.tokens) - 1)

    @property
    def most_rows(self) -> int:
        """KV rows that it may ever need: prompt, answer, and the nodes of one step."""
        return len(self.request.prompt_ids) + self.answer.limit + self.budget

    @property
    def least_rows(self) -> int:
        """KV rows that its next step may need."""
        return self.text_length + self.budget

    @property
    def drafter_kind(self) -> tuple[object, ...]:
        """Generations of one kind can go on with each other's drafter."""
        speculation = self.request.speculation
        return speculation.drafter, speculation.policy, self.csd_rule is not None

    @property
    def asks_draft_model(self) -> bool:
        """Whether its drafter is one that may use the draft model."""
        return self.request.speculation.drafter in ("draft_model", "hybrid") and self.budget > 1

    def send(self, event: Event) -> None:
        self._sink(event)

    def finish(self, reason: FinishReason) -> Event:
        """The last event of a generation that did not fail."""
        return self.answer.finish(reason, self.cached_tokens)

    def end(self, event: Event) -> None:
        """Send the last event and drop what a suspended generation holds; only the first call does anything."""
        if not self.ended:
            self.ended = True
            self.suspended = None
            self._sink(event)

    def fail(self, error: Exception) -> None:
        self.end(Failed(error))
