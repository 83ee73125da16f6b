"""Replies in OpenAI's format: whole answers and stream chunks, for completions and for chat."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.api.output_parser import OutputParser, ParserOptions
from app.api.token_details import DetailOptions, Echo, TokenDetails
from app.engine.events import SOURCE_NAMES, Delta, Finished, SpeculationStats
from app.text.thoughts import Split

LARGE = 2048  # entries of a reply; serializing fewer is faster than waking a thread


@dataclass(frozen=True, slots=True)
class ReplyKind:
    """How completions and chat differ in what they send."""

    prefix: str  # of the request id
    whole_object: str
    chunk_object: str
    opens_with_role: bool
    logprobs: Literal["chat", "completion"]

    def whole(self, text: str, calls: Sequence[dict[str, Any]], thought: str | None) -> dict[str, Any]:
        """thought: None where thoughts are not shown."""
        if not self.opens_with_role:
            return {"text": text}
        message = {"role": "assistant", "content": text if text or not (calls or thought) else None, "refusal": None}
        message |= {} if thought is None else {"reasoning_content": thought or None}
        return {"message": message | ({"tool_calls": list(calls)} if calls else {})}

    def part(self, text: str) -> dict[str, Any]:
        if not self.opens_with_role:
            return {"text": text}
        return {"delta": {"content": text} if text else {}}


COMPLETION = ReplyKind("cmpl-", "text_completion", "text_completion", opens_with_role=False, logprobs="completion")
CHAT = ReplyKind("chatcmpl-", "chat.completion", "chat.completion.chunk", opens_with_role=True, logprobs="chat")
ROLE_DELTA = {"delta": {"role": "assistant", "content": ""}}


def thought_delta(thought: str) -> dict[str, Any]:
    return {"delta": {"reasoning_content": thought}}


def calls_delta(calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Complete tool calls as a delta."""
    return {"delta": {"tool_calls": [{"index": place, **call} for place, call in enumerate(calls)]}}


@dataclass(slots=True)
class Choice:
    """One choice of a reply while it is generated."""

    index: int
    details: TokenDetails
    parser: OutputParser
    echo: Echo | None = None
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    finished: Finished | None = None
    tokens: int = 0

    def add(self, event: Delta | Finished) -> None:
        if isinstance(event, Finished):
            self.finished = event
        else:
            self.tokens += len(event.token_ids)
            self.details.add(event, self._opening())
        thought, text = self.parser.push(event.text, ends=isinstance(event, Finished))
        self.thoughts.append(thought)
        self.texts.append(text)

    def take(self) -> Split:
        """The thoughts and the content added since the last call."""
        split = Split("".join(self.thoughts), "".join(self.texts))
        self.thoughts, self.texts = [], [""]  # not empty: the echo was already returned
        return split

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Complete once the choice is finished."""
        return self.parser.calls

    @property
    def finish_reason(self) -> str | None:
        if self.finished is None:
            return None
        return "tool_calls" if self.calls and self.finished.reason == "stop" else self.finished.reason

    def _opening(self) -> Echo | None:
        """The echo, on the first event only."""
        if self.echo is None or self.texts:
            return None
        self.texts.append(self.echo.text)
        return self.echo


@dataclass(frozen=True, slots=True)
class Reply:
    """What all chunks of one reply share."""

    kind: ReplyKind
    id: str
    model: str
    fingerprint: str
    details: DetailOptions
    echoes: Sequence[Echo | None]  # one for each choice
    prompt_tokens: int  # each prompt counted once
    parsing: ParserOptions = field(default_factory=ParserOptions)
    warnings: Sequence[dict[str, Any]] = ()
    dropped: int = 0  # characters of the prompts that the vocabulary cannot spell
    created: int = field(default_factory=lambda: int(time.time()))

    def choices(self) -> list[Choice]:
        """The choices of this reply, all still empty."""
        return [
            Choice(place, TokenDetails(self.details), self.parsing.parser(), echo) for place, echo in enumerate(self.echoes)
        ]

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The reply in one piece; every choice is finished."""
        ends = [choice.finished for choice in choices if choice.finished is not None]
        shown = []
        for choice, end in zip(choices, ends, strict=True):
            thought = "".join(choice.thoughts) if choice.parser.thinks else None
            content = self.kind.whole("".join(choice.texts), choice.calls, thought)
            shown.append(self.choice(choice.index, content, end, choice.finish_reason) | choice.details.take())
        body = self._body(self.kind.whole_object, shown)
        return body | {"usage": self.usage(ends), "metrics": metrics_of(ends)} | self.remarks

    def usage(self, ends: Sequence[Finished]) -> dict[str, Any]:
        """The usage of all choices together; a prompt counts once, however many choices it has."""
        usage = self._usage(sum(end.completion_tokens for end in ends))
        details = {"cached_tokens": sum(end.cached_tokens for end in ends)}
        if self.dropped:
            details["dropped_characters"] = self.dropped
        return usage | {"prompt_tokens_details": details}

    def usage_so_far(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The usage while the choices are generated."""
        return self._usage(sum(choice.tokens for choice in choices))

    def _usage(self, completion: int) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }

    @property
    def remarks(self) -> dict[str, Any]:
        """The `warnings` member, if there are any."""
        return {"warnings": list(self.warnings)} if self.warnings else {}

    def choice(
        self, index: int, content: dict[str, Any], end: Finished | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, **content, "logprobs": None, "finish_reason": reason}
        return choice | ({"stop_reason": end.stop_reason} if end else {})

    def chunk(self, choices: Sequence[dict[str, Any]], **extra: Any) -> dict[str, Any]:
        return self._body(self.kind.chunk_object, choices) | extra

    def _body(self, name: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": list(choices),
        }


def metrics_of(ends: Sequence[Finished]) -> dict[str, Any]:
    """The `metrics` member, summed over all choices."""
    stats = merge([end.stats for end in ends])
    return {
        "speculative_decoding": {
            "drafter": stats.drafter,
            "verifier": stats.verifier,
            "mean_acceptance_length": round(stats.mean_acceptance_length, 4),
            "draft_acceptance_rate": round(stats.draft_acceptance_rate, 4),
            "acceptance_histogram": list(stats.acceptance_histogram),
            "num_spec_steps": stats.num_steps,
            "num_draft_tokens": stats.num_draft_tokens,
            "num_accepted_draft_tokens": stats.num_accepted_tokens,
            "tokens_by_source": {source: stats.tokens_by_source.get(source, 0) for source in SOURCE_NAMES},
            "rescues": stats.rescues,
            "rescues_refused_by_gate": stats.refused_by_gate,
        }
    }


def merge(parts: Sequence[SpeculationStats]) -> SpeculationStats:
    """The sum over the counts of one or more generations."""
    depth = max(len(part.acceptance_histogram) for part in parts)
    padded = [(*part.acceptance_histogram, *[0] * (depth - len(part.acceptance_histogram))) for part in parts]
    return SpeculationStats(
        drafter=parts[0].drafter,
        verifier=parts[0].verifier,
        num_steps=sum(part.num_steps for part in parts),
        num_draft_tokens=sum(part.num_draft_tokens for part in parts),
        num_accepted_tokens=sum(part.num_accepted_tokens for part in parts),
        emitted=sum(part.emitted for part in parts),
        acceptance_histogram=tuple(sum(column) for column in zip(*padded, strict=True)),
        tokens_by_source={source: sum(part.tokens_by_source.get(source, 0) for part in parts) for source in SOURCE_NAMES},
        rescues=sum(part.rescues for part in parts),
        refused_by_gate=sum(part.refused_by_gate for part in parts),
    )


def size_of(event: Delta | Finished) -> int:
    """Roughly how many entries of a reply an event makes: tokens, and the details of each."""
    if isinstance(event, Finished):
        return 1
    size = len(event.token_ids) + (0 if event.tree is None else len(event.tree.tokens))
    for scores in (event.logprobs, event.prompt_logprobs):
        last = scores[-1] if scores else None
        size += len(scores) * (2 + (0 if last is None else len(last.top)))
    return size
