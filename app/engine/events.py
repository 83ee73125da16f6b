"""What the engine reports back while it generates, and what it tells an observer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from racer.tree import DraftTree

FinishReason = Literal["stop", "length", "cancelled"]
# invalid: the request's own fault, found in mid-answer. cancelled is also what the end of the server cuts short
EndReason = FinishReason | Literal["error", "invalid"]
SourceName = Literal["retrieval", "copy_logit", "draft_model", "target", "grammar"]
SOURCE_NAMES: tuple[SourceName, ...] = ("retrieval", "copy_logit", "draft_model", "target", "grammar")
PHASES = ("draft", "forward", "walk", "commit", "learn")


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Counts of one finished generation. emitted = num_accepted + num_steps + 1 (the first token, chosen by the prefill)."""

    drafter: str
    verifier: str
    num_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    emitted: int
    acceptance_histogram: tuple[int, ...]  # [a] = verify steps that kept a draft tokens
    tokens_by_source: dict[str, int]  # keys: SOURCE_NAMES
    rescues: int = 0  # tokens that CSD kept in place of the target's
    refused_by_gate: int = 0  # draft tokens that the memory nominated and the target's logits did not admit

    @property
    def mean_acceptance_length(self) -> float:
        """MAT: tokens emitted by verify steps over verify steps; 1.0 where no verify step ran."""
        return (self.num_accepted_tokens + self.num_steps) / self.num_steps if self.num_steps else 1.0

    @property
    def draft_acceptance_rate(self) -> float:
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The target's own log-probability of a token at temperature 1, before any rule, and its likeliest (id, value) there."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepTree:
    """The draft tree that one verify step checked, for a reader: node 0 is the root, a parent stands before its children.

    tokens, parents, sources: one entry per node; the root has parent -1. accepted: the nodes the step kept, root first.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    sources: tuple[SourceName, ...]
    accepted: tuple[int, ...]

    @staticmethod
    def of(tree: DraftTree, accepted: Sequence[int]) -> StepTree:
        sources = tuple(SOURCE_NAMES[source] for source in tree.source)
        return StepTree(tuple(tree.tokens.tolist()), tuple(tree.parents.tolist()), sources, tuple(accepted))


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens emitted by one step. text is what can be shown by now: held-back characters come with a later event.

    logprobs: one for each token where the request asked. prompt_logprobs: with the first token, one for each prompt token,
    None for the first.
    """

    token_ids: tuple[int, ...]
    text: str
    sources: tuple[SourceName, ...]
    rescued: tuple[int, ...] = ()  # places in token_ids that CSD rescued
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    tree: StepTree | None = None  # where the request asks for a trace; the first token has none


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a generation that did not fail. text is the rest that was held back."""

    reason: FinishReason
    stop_reason: str | int | None  # the stop string or stop token id that ended it, None for EOS and length
    text: str
    prompt_tokens: int
    completion_tokens: int
    stats: SpeculationStats
    cached_tokens: int = 0  # of the prompt: read in an earlier turn of the conversation


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a generation that failed; error says why, without the user's text."""

    error: Exception


Event = Delta | Finished | Failed
EventSink = Callable[[Event], None]  # called on the engine's worker thread: must return at once


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One engine step over all sessions that took part."""

    sessions: int
    drafts: int  # sessions that had anything to verify beside the root
    nodes: int  # verified, roots included
    drafted: int  # nodes without the roots
    accepted_lengths: tuple[int, ...]  # per session: draft tokens kept
    emitted_by_source: dict[str, int]
    phase_seconds: dict[str, float] = field(default_factory=dict)  # keys: PHASES
    rescues: int = 0
    nominated: int = 0  # draft tokens that the memory, or a rule without one, put forward
    refused_by_gate: int = 0
    budgets: tuple[int, ...] = ()  # per session: nodes verified, root included
    seconds: float = 0.0  # wall time of the step
    plain_seconds: float = 0.0  # what plain decoding takes for the same tokens, by the cost curve


class EngineObserver(Protocol):
    """Hears of everything countable; an error it raises is logged once and never reaches a request."""

    def step(self, record: StepRecord) -> None: ...

    def prefilled(self, tokens: int) -> None: ...

    def first_token(self, seconds: float) -> None:
        """seconds: since the request arrived."""

    def inter_token(self, seconds: float, tokens: int) -> None:
        """A session emitted tokens. seconds: since it emitted before."""

    def finished(self, reason: EndReason, seconds: float, prompt_tokens: int, completion_tokens: int) -> None:
        """seconds: since the request arrived."""
