"""One answer as it grows: its tokens, its text, what was counted of it, and where it ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.engine.events import (
    SOURCE_NAMES,
    Delta,
    Finished,
    FinishReason,
    SpeculationStats,
    StepTree,
    TokenLogprob,
)
from app.engine.request import GenerationRequest
from app.text.codec import TextCodec
from app.text.stops import StopMatcher
from racer.tree import DraftTree, Source

PROMPT_TAIL = 8  # prompt tokens that give the first token of a continuation its left context


@dataclass(slots=True)
class Counts:
    """Verify steps, drafted and kept tokens of one generation. `app.engine.step` adds to them."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    rescues: int = 0
    refused_by_gate: int = 0
    histogram: list[int] = field(default_factory=list)  # [a]: steps that kept a draft tokens
    by_source: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SOURCE_NAMES, 0))


class Answer:
    """The answer to one request. Used by the worker thread alone."""

    def __init__(self, request: GenerationRequest, codec: TextCodec, limit: int) -> None:
        """limit: tokens it may have, at least 1."""
        self.tokens: list[int] = []
        self.counts = Counts()
        self.limit = limit
        # a grammar that is complete allows only the end
        self.eos_ids = frozenset() if request.stopping.ignore_eos and request.grammar is None else codec.eos_ids
        self.stop_ids = frozenset(request.stopping.stop_token_ids)
        self.finish_reason: FinishReason | None = None  # set once the answer is complete
        self.emitted_at = time.monotonic()
        self.gap = 0.0  # seconds between its last two emissions
        self._request = request
        self._detokenizer = codec.detokenizer(request.prompt_ids[-PROMPT_TAIL:] if request.continue_text else ())
        self._stops = StopMatcher(request.stopping.stop)
        self._stop_reason: str | int | None = None

    @property
    def ends(self) -> frozenset[int]:
        """Ids that end the answer."""
        return self.eos_ids | self.stop_ids

    def append(
        self,
        tokens: Sequence[int],
        sources: Sequence[Source],
        rescued: Sequence[int] = (),
        logprobs: Sequence[TokenLogprob] = (),
        prompt_logprobs: Sequence[TokenLogprob | None] = (),
        verified: tuple[DraftTree, Sequence[int]] | None = None,
    ) -> Delta:
        """Append tokens up to the first that ends the answer; returns what the client is to be sent.

        The run is cut at the earliest of EOS, stop token, completed stop string and limit. Its last token is the target's own
        choice, whether a draft foresaw it or not, and counts as such: emitted = accepted + steps + first. A rescued token
        that completes a stop string counts so too, and stays marked as rescued.
        verified: the step's tree and the path of the walk, root first, for a client that asked for a trace.
        """
        pieces: list[str] = []
        taken = 0
        for token in tokens:
            taken += 1
            self.tokens.append(token)
            if self._take(token, pieces):
                break
        traced = verified if self._request.speculation.trace else None
        before, self.emitted_at = self.emitted_at, time.monotonic()
        self.gap = self.emitted_at - before
        return Delta(
            tuple(tokens[:taken]),
            "".join(pieces),
            tuple(SOURCE_NAMES[source] for source in (*sources[: taken - 1], Source.TARGET)),
            tuple(place for place in rescued if place < taken),
            tuple(logprobs[:taken]),
            tuple(prompt_logprobs),
            None if traced is None else StepTree.of(traced[0], traced[1][:taken]),
        )

    def _take(self, token: int, pieces: list[str]) -> bool:
        """Render one token; true if the answer ends with it."""
        if token in self.eos_ids:
            self.finish_reason = "stop"
            return True
        if token in self.stop_ids:
            self.finish_reason, self._stop_reason = "stop", token
            return True
        ends = len(self.tokens) > self._request.stopping.min_tokens
        text, stop = self._stops.push(self._detokenizer.push(token), ends)
        pieces.append(text)
        if stop is None and len(self.tokens) >= self.limit:
            rest, stop = self._stops.push(self._detokenizer.flush(), ends)  # a half character may complete a stop string
            pieces.append(rest)
            self.finish_reason = "length"
        if stop is not None:
            self.finish_reason, self._stop_reason = "stop", stop
        return self.finish_reason is not None

    def finish(self, reason: FinishReason, cached_tokens: int = 0) -> Finished:
        """The last event of an answer that did not fail. cached_tokens: of the prompt, read in an earlier turn."""
        tail = ""
        if self._stop_reason is None or isinstance(self._stop_reason, int):
            text, _ = self._stops.push(self._detokenizer.flush())
            tail = text + self._stops.flush()
        prompt = len(self._request.prompt_ids)
        return Finished(reason, self._stop_reason, tail, prompt, len(self.tokens), self._stats(), cached_tokens)

    def _stats(self) -> SpeculationStats:
        speculation, counts = self._request.speculation, self.counts
        return SpeculationStats(
            drafter=speculation.drafter or "none",
            verifier=speculation.verifier or "exact",
            num_steps=counts.steps,
            num_draft_tokens=counts.drafted,
            num_accepted_tokens=counts.accepted,
            emitted=len(self.tokens),
            acceptance_histogram=tuple(counts.histogram),
            tokens_by_source=dict(counts.by_source),
            rescues=counts.rescues,
            refused_by_gate=counts.refused_by_gate,
        )
