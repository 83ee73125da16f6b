"""One generation in progress: its tokens, its text, where it ends, and what it has counted."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from enum import Enum

from app.engine.counts import Counts
from app.engine.draft.model import DraftCache
from app.engine.events import (
    SOURCE_NAMES,
    Delta,
    Event,
    EventSink,
    Failed,
    Finished,
    FinishReason,
    SpeculationStats,
    StepTree,
    TokenLogprob,
)
from app.engine.forward.target import SessionCache
from app.engine.prefix.learnt import LearntRows
from app.engine.request import GenerationRequest
from app.engine.sampling.logits_processor import TokenRules
from app.text.codec import TextCodec
from app.text.stops import StopMatcher
from csd.gate import Rule
from racer.drafter import Drafter
from racer.ends import Ends, ends_of
from racer.tree import DraftTree, Source

PROMPT_TAIL = 8  # prompt tokens that give the first token of a continuation its left context


class Stage(Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    ENDED = "ended"


class Session:
    """A request from the queue to its last event. Touched by the worker thread only, but for `cancelled`."""

    def __init__(self, request: GenerationRequest, sink: EventSink, codec: TextCodec, budget: int, limit: int) -> None:
        """budget: nodes a step may verify, root included. limit: tokens the answer may have, at least 1."""
        self.request = request
        self.sink = sink
        self.budget = budget
        self.limit = limit
        self.seed = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
        self.stage = Stage.WAITING
        self.cancelled = False
        self.rows = 0  # of KV that it holds now (see app.engine.prefix.room)
        self.prefilled = 0  # tokens of its text that stand in the cache, while it is read
        self.counted = 0  # tokens of the prompt that count as read
        self.evictions = 0  # of automaton nodes, that are counted
        self.observed = 0  # tokens of the prompt that the drafter has taken in
        self.learnt = 0  # tokens of the prompt whose successors it has
        self.cached_tokens = 0  # of the prompt: taken over from an earlier turn
        self.prompt_rows: list[LearntRows] = []  # for siblings of its group
        self.prompt_scores: list[TokenLogprob | None] = []  # the same
        self.output: list[int] = []
        self.cache: SessionCache | None = None
        self.drafter: Drafter | None = None
        self.draft: DraftCache | None = None
        self.counts = Counts()
        self.rule: Rule | None = None  # of the verifier csd; None: exact
        self.protected: frozenset[int] = frozenset()  # ids that neither are rescued nor give way
        self.rules: TokenRules | None = None
        self.prompt_logprobs: list[TokenLogprob | None] = []
        self.failure: Exception | None = None  # of a step, its own alone: it ends with it
        self.admitted_at = self.emitted_at = time.monotonic()
        self.submitted_at = self.admitted_at if request.arrived_at is None else request.arrived_at
        self.gap = 0.0  # seconds from its emission before the last one to the last one
        # a grammar that is complete leaves nothing but the end
        self._eos = frozenset() if request.stopping.ignore_eos and request.grammar is None else codec.eos_ids
        self._stop_ids = frozenset(request.stopping.stop_token_ids)
        self.ends = self._eos | self._stop_ids  # ids that end the answer
        self._end_ids = ends_of(self.ends).ids
        self._detokenizer = codec.detokenizer(request.prompt_ids[-PROMPT_TAIL:] if request.continue_text else ())
        self._stops = StopMatcher(request.stopping.stop)
        self._reason: FinishReason | None = None
        self._stop_reason: str | int | None = None

    @property
    def most_rows(self) -> int:
        """Rows of KV it may ever need: prompt, answer, and the nodes of one step."""
        return len(self.request.prompt_ids) + self.limit + self.budget

    @property
    def least_rows(self) -> int:
        """Rows of KV its next step may need."""
        return self.readable + self.budget

    def can_have(self, rows: int) -> bool:
        """Whether a slab of so many rows is large enough for it, and not larger than it may ever need."""
        return self.least_rows <= rows <= self.most_rows

    @property
    def readable(self) -> int:
        """Tokens that stand in the cache when it decodes: the prompt, and of the answer all but the last."""
        return len(self.request.prompt_ids) + max(0, len(self.output) - 1)

    def text(self, start: int, stop: int) -> list[int]:
        """Tokens of prompt and answer."""
        length = len(self.request.prompt_ids)
        return [*self.request.prompt_ids[start:stop], *self.output[max(0, start - length) : max(0, stop - length)]]

    def count_read(self, before: int) -> int:
        """Tokens of the prompt that were read since `before` of them were in the cache, each counted once."""
        now = min(self.prefilled, len(self.request.prompt_ids))
        fresh = max(0, now - max(before, self.counted))
        self.counted = max(self.counted, now)
        return fresh

    def give_rows_up(self) -> None:
        """Drop the rows of KV and keep all else: it goes on once its text has been read again."""
        self.stage = Stage.WAITING
        self.cache, self.prefilled = None, 0
        if self.draft is not None:
            self.draft.drop()

    @property
    def drafter_kind(self) -> tuple[object, ...]:
        """Sessions of one kind can go on with each other's drafter."""
        speculation = self.request.speculation
        return speculation.drafter, speculation.policy, self.rule is not None

    @property
    def reads_from_cache(self) -> bool:
        """Whether rows of the prompt may be taken over; where each is to be scored, each is read."""
        return not self.request.prompt_logprobs

    @property
    def draft_ends(self) -> Ends:
        """What ends the answer, and how deep in the next draft it may stand: never where min_tokens still forbids it."""
        stopping = self.request.stopping
        if self.request.grammar is not None:  # it may leave nothing but the end
            return Ends(self._end_ids)
        return Ends(self._end_ids, max(0, stopping.min_tokens - len(self.output) + 1))

    @property
    def max_depth(self) -> int:
        """How deep a draft may reach: the step emits one token more than it keeps, and the answer has this much room."""
        return self.limit - len(self.output) - 1

    def token_before_last(self, emitted: int) -> int:
        """The token before the one that was the root when the last step emitted so many."""
        place = len(self.output) - emitted - 2
        return self.output[place] if place >= 0 else self.request.prompt_ids[place]

    @property
    def estimates(self) -> bool:
        """Whether the confidence of its drafts is the probability that they are accepted."""
        speculation = self.request.speculation
        return speculation.policy == "auto" or speculation.drafter == "draft_model"

    @property
    def controlled(self) -> bool:
        """Whether the engine decides at each step how much of the budget pays."""
        return self.estimates and not self.request.speculation.fixed_budget and self.budget > 1

    @property
    def asks_draft_model(self) -> bool:
        """Whether its drafter is one that may use the draft model."""
        return self.request.speculation.drafter in ("draft_model", "hybrid") and self.budget > 1

    @property
    def finish_reason(self) -> FinishReason | None:
        """Set once the answer is complete."""
        return self._reason

    def emit(
        self,
        tokens: Sequence[int],
        sources: Sequence[Source],
        rescued: Sequence[int] = (),
        logprobs: Sequence[TokenLogprob] = (),
        verified: tuple[DraftTree, Sequence[int]] | None = None,
    ) -> int:
        """Append a run of tokens up to the first that ends the answer; returns how many were taken and tells the client.

        Cut at the earliest of EOS, stop token, completed stop string and limit, token by token. The last token of a run is
        the target's own choice whether a draft foresaw it or not, and counts as such: emitted = accepted + steps + first. One
        that a rescue put there and that completes a stop string counts so too, and is marked as rescued.
        verified: the step's tree and the path of the walk, root first, for a client that asked for a trace.
        """
        begun = len(self.output)
        try:
            delta = self._delta(tokens, sources, rescued, logprobs, verified)
        except Exception:
            del self.output[begun:]  # the client never hears of them
            raise
        self.sink(delta)
        return len(delta.token_ids)

    def _delta(
        self,
        tokens: Sequence[int],
        sources: Sequence[Source],
        rescued: Sequence[int],
        logprobs: Sequence[TokenLogprob],
        verified: tuple[DraftTree, Sequence[int]] | None,
    ) -> Delta:
        pieces: list[str] = []
        taken = 0
        for token in tokens:
            taken += 1
            self.output.append(token)
            if self._take(token, pieces):
                break
        kept = [*sources[: taken - 1], Source.TARGET]
        for source in kept:
            self.counts.by_source[source] += 1
        marks = tuple(place for place in rescued if place < taken)
        self.counts.rescues += len(marks)
        if self.rules is not None:
            self.rules.accept(tokens[:taken])
        prompt_logprobs, self.prompt_logprobs = tuple(self.prompt_logprobs), []
        names = tuple(SOURCE_NAMES[source] for source in kept)
        traced = verified if self.request.speculation.trace else None
        tree = None if traced is None else StepTree.of(traced[0], traced[1][:taken])
        scores = tuple(logprobs[:taken])
        before, self.emitted_at = self.emitted_at, time.monotonic()
        self.gap = self.emitted_at - before
        return Delta(tuple(tokens[:taken]), "".join(pieces), names, marks, scores, prompt_logprobs, tree)

    def _take(self, token: int, pieces: list[str]) -> bool:
        """Render one token; true if the answer ends with it."""
        if token in self._eos:
            self._reason = "stop"
            return True
        if token in self._stop_ids:
            self._reason, self._stop_reason = "stop", token
            return True
        ends = len(self.output) > self.request.stopping.min_tokens
        text, stop = self._stops.push(self._detokenizer.push(token), ends)
        pieces.append(text)
        if stop is None and len(self.output) >= self.limit:
            rest, stop = self._stops.push(self._detokenizer.flush(), ends)  # a half character may complete a stop string
            pieces.append(rest)
            self._reason = "length"
        if stop is not None:
            self._reason, self._stop_reason = "stop", stop
        return self._reason is not None

    def finish(self, reason: FinishReason) -> Finished:
        """The last event of an answer that did not fail."""
        tail = ""
        if self._stop_reason is None or isinstance(self._stop_reason, int):
            text, _ = self._stops.push(self._detokenizer.flush())
            tail = text + self._stops.flush()
        return Finished(
            reason, self._stop_reason, tail, len(self.request.prompt_ids), len(self.output), self.stats(), self.cached_tokens
        )

    def stats(self) -> SpeculationStats:
        speculation = self.request.speculation
        return SpeculationStats(
            drafter=speculation.drafter or "none",
            verifier=speculation.verifier or "exact",
            num_steps=self.counts.steps,
            num_draft_tokens=self.counts.drafted,
            num_accepted_tokens=self.counts.accepted,
            emitted=len(self.output),
            acceptance_histogram=tuple(self.counts.histogram),
            tokens_by_source=dict(zip(SOURCE_NAMES, self.counts.by_source, strict=True)),
            rescues=self.counts.rescues,
            refused_by_gate=self.counts.refused_by_gate,
        )

    def end(self, event: Event) -> None:
        """Send the last event and drop what the session holds."""
        if self.stage is Stage.ENDED:
            return
        self.stage = Stage.ENDED
        self.cache = None
        self.drafter = None
        self.draft = None
        self.rules = None
        self.prompt_rows, self.prompt_scores = [], []
        self.sink(event)

    def fail(self, error: Exception) -> None:
        self.end(Failed(error))
