"""A generation that runs: its KV rows, its drafter, and how far its prompt is read."""

from __future__ import annotations

from collections.abc import Sequence

from app.engine.draft.model import DraftCache
from app.engine.events import Delta, TokenLogprob
from app.engine.forward.target import SessionCache
from app.engine.generation import Generation, Suspended
from app.engine.progress import LearntRows, PromptProgress
from app.engine.sampling.logits_processor import LogitsProcessor
from racer.drafter import Drafter
from racer.limits import Ends, ends_of
from racer.tree import DraftTree, Int64Array, Source


class Session:
    """What a running generation holds. It prefills until `decoding`. Touched by the worker thread only."""

    def __init__(
        self,
        generation: Generation,
        cache: SessionCache,
        drafter: Drafter,
        draft_cache: DraftCache | None = None,
        processor: LogitsProcessor | None = None,
        progress: PromptProgress | None = None,
    ) -> None:
        """draft_cache: what the draft model has read of it. processor: None where the request changes no logits."""
        self.generation = generation
        self.request = generation.request
        self.answer = generation.answer
        self.budget = generation.budget
        self.ends = generation.answer.ends
        self.cache = cache
        self.rows = cache.capacity  # KV rows that are reserved for it (app.engine.slots)
        self.drafter = drafter
        self.draft_cache = draft_cache
        self.processor = processor
        self.progress = PromptProgress() if progress is None else progress
        self.decoding = False  # the prompt is read and the first token is there
        self.evictions = drafter.state.evictions  # of automaton nodes, that are counted
        self.failure: Exception | None = None  # of a step, its own alone: it ends with it
        self._end_ids = ends_of(self.ends).ids

    # -- its text --------------------------------------------------------------------------------------------------------

    @property
    def unread(self) -> int:
        """Tokens to be read before it can decode."""
        return self.generation.text_length - self.cache.length

    def text(self, start: int, stop: int) -> list[int]:
        """Tokens of prompt and answer."""
        prompt, answer = self.request.prompt_ids, self.answer.tokens
        length = len(prompt)
        return [*prompt[start:stop], *answer[max(0, start - length) : max(0, stop - length)]]

    def token_before_last(self, emitted: int) -> int:
        """The token before the one that was the root when the last step emitted this many."""
        place = len(self.answer.tokens) - emitted - 2
        return self.answer.tokens[place] if place >= 0 else self.request.prompt_ids[place]

    def count_read(self, before: int) -> int:
        """Tokens of the prompt that were read since `before` of them were in the cache, each counted once."""
        now = min(self.cache.length, len(self.request.prompt_ids))
        fresh = max(0, now - max(before, self.progress.counted))
        self.progress.counted = max(self.progress.counted, now)
        return fresh

    def observe(self, start: int, tokens: Int64Array) -> None:
        """Let the drafter take in prompt tokens from place `start` on, as far as it has not."""
        self.drafter.observe(tokens[max(0, self.progress.observed - start) :])
        self.progress.observed = max(self.progress.observed, start + len(tokens))

    def learn(self, rows: LearntRows) -> None:
        """Teach the drafter what it has not learnt of the prompt yet."""
        fresh = rows.since(self.progress.learnt)
        if not self.drafter.learns or not len(fresh.tokens):
            return
        self.drafter.learn(*fresh[1:])
        self.progress.learnt = fresh.end
        if self.request.group is not None:
            self.progress.learnt_rows.append(fresh)

    def emit(
        self,
        tokens: Sequence[int],
        sources: Sequence[Source],
        rescued: Sequence[int] = (),
        logprobs: Sequence[TokenLogprob] = (),
        verified: tuple[DraftTree, Sequence[int]] | None = None,
    ) -> Delta:
        """Append tokens to the answer and send them to the client; see Answer.append. What fails is taken back."""
        answer, begun = self.answer, len(self.answer.tokens)
        prompt_logprobs, self.progress.logprobs = self.progress.logprobs, []
        try:
            delta = answer.append(tokens, sources, rescued, logprobs, prompt_logprobs, verified)
            if self.processor is not None:
                self.processor.accept(delta.token_ids)
        except Exception:
            del answer.tokens[begun:]  # the client never hears of them
            raise
        self.generation.send(delta)
        return delta

    def suspend(self, no_rows: SessionCache) -> Generation:
        """Give up the KV rows; the generation keeps all else. The session is not used again."""
        if self.draft_cache is not None:
            self.draft_cache.drop()
        self.cache, self.decoding = no_rows, False
        self.generation.suspended = Suspended(self.drafter, self.draft_cache, self.processor, self.progress)
        return self.generation

    # -- its drafts ------------------------------------------------------------------------------------------------------

    @property
    def draft_ends(self) -> Ends:
        """What ends the answer, and how deep in the next draft it may stand: never where min_tokens still forbids it."""
        stopping = self.request.stopping
        if self.request.grammar is not None:  # it may leave nothing but the end
            return Ends(self._end_ids)
        return Ends(self._end_ids, max(0, stopping.min_tokens - len(self.answer.tokens) + 1))

    @property
    def max_depth(self) -> int:
        """How deep a draft may reach: the step emits one token more than it keeps, and the answer has this much room."""
        return self.answer.limit - len(self.answer.tokens) - 1

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
    def readable_draft(self) -> DraftCache | None:
        """The draft model's cache, where that can be asked for another token."""
        return (
            self.draft_cache
            if self.draft_cache is not None and self.draft_cache.slab is not None and self.max_depth > 0
            else None
        )
