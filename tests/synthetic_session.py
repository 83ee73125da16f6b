"""What the synthetic engine generates: a codec of bytes, and sessions of seeded pseudo text."""

from __future__ import annotations

import codecs
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from random import Random
from typing import Any, cast

from app.engine.events import Delta, EventSink, Finished, FinishReason, SourceName, SpeculationStats, StepTree, TokenLogprob
from app.engine.request import GenerationRequest
from app.text.codec import ChatPrompt
from app.text.detokenizer import ByteDetokenizer, Detokenizer
from app.text.errors import ChatTemplateError
from app.text.grammar_compiler import GrammarCompiler
from app.text.pieces import PieceTable
from app.text.thoughts import Thoughts
from app.text.tool_calls import CallFormat

BOS, EOS, TURN, END = 256, 257, 258, 259  # ids below are the bytes of UTF-8
SPECIAL_NAMES = {BOS: "<|bos|>", EOS: "<|eos|>", TURN: "<|turn|>", END: "<|end|>"}
WORDS = (
    "the",
    "tree",
    "draft",
    "token",
    "naïve",
    "東京",
    "👩‍👩‍👧",
    "def f(x):\n    return",
    "it's",
    "a , b !",
    "𝄞",
    "and",
    "so",
)


class SyntheticCodec:
    """One id per byte and four special ids.

    chat_error: what the chat template answers to any messages. thoughts: where the answer to every chat may think.
    """

    vocab_size = 260
    eos_ids = frozenset({EOS})
    special_ids = frozenset(SPECIAL_NAMES)

    def __init__(self, chat_error: str | None = None, has_chat_template: bool = True, thoughts: Thoughts | None = None) -> None:
        self.chat_error = chat_error
        self.thoughts = thoughts
        self.unspelled = ""  # a character that counts as one the vocabulary lacks
        self.has_chat_template = has_chat_template

        self.grammars = GrammarCompiler(self)

    def call_format(self) -> CallFormat:
        return CallFormat("tagged")

    def vocabulary_bytes(self) -> list[bytes]:
        return [bytes([i]) if i < BOS else SPECIAL_NAMES[i].encode() for i in range(self.vocab_size)]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return ([BOS] if add_special_tokens else []) + list(text.encode())

    def encode_chat(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None) -> list[int]:
        return self.read_chat(messages, tools).ids

    def read_chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        if self.chat_error is not None or not self.has_chat_template:
            raise ChatTemplateError(self.chat_error or "This model has no chat template; use /v1/completions.")
        ids = [BOS]
        for message in messages:
            calls = "".join(call["function"]["name"] for call in message.get("tool_calls", ()))
            ids += [TURN, *f"{message['role']}\n{message['content']}{calls}".encode(), END]
        ids += [TURN, *f"assistant\n{json.dumps(dict(options)) if options else ''}".encode()]
        return ChatPrompt(ids, self.thoughts, self.dropped(self.decode(ids), ids))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        parts = [bytes([i]) if i < BOS else b"" if skip_special_tokens else SPECIAL_NAMES[i].encode() for i in ids]
        return b"".join(parts).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < BOS else SPECIAL_NAMES[token_id].encode()

    def dropped(self, text: str, ids: Sequence[int]) -> int:
        return text.count(self.unspelled) if self.unspelled else 0

    def detokenizer(self) -> Detokenizer:
        return ByteDetokenizer(cast(PieceTable, self))

    def piece(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < BOS else b""

    first_piece = piece


class SyntheticSession:
    """One generation on the synthetic worker."""

    def __init__(
        self,
        request: GenerationRequest,
        sink: EventSink,
        *,
        number: int,
        seed: int,
        answer_tokens: int,
        answer: str | None,
        max_context: int,
        drafter: str,
        max_nodes: int,
    ) -> None:
        """number: of the request; draws without a seed differ by it. drafter, max_nodes: the server's defaults."""
        self.request, self.sink = request, sink
        sampling = request.sampling
        drawn = 0 if sampling.temperature == 0.0 else sampling.seed if sampling.seed is not None else f"unseeded {number}"
        said = None if answer is None else chain(answer.encode(), repeat(EOS))
        self.tokens = said or _pseudo_text(f"{drawn} {request.prompt_ids}", answer_tokens)
        self.random = Random(f"{seed} {number}")  # acceptance does not change the text
        self.drafter = request.speculation.drafter or drafter
        self.nodes = 1 if self.drafter == "none" else request.speculation.max_nodes or max_nodes
        room = max_context - len(request.prompt_ids)
        self.budget = room if request.stopping.max_tokens is None else request.stopping.max_tokens
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.held = ""  # text not sent yet: it may be the beginning of a stop string
        self.emitted = 0
        self.reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.cancelled = False
        self.ended = False
        self.emitted_at = time.monotonic()
        self.started = self.emitted_at if request.arrived_at is None else request.arrived_at
        self.gap = 0.0
        self.drafted = self.accepted = self.steps = 0
        self.histogram: Counter[int] = Counter()
        self.sources: Counter[str] = Counter()
        self.root = request.prompt_ids[-1]

    def advance(self, run: int) -> tuple[int, Counter[str]]:
        """Emit up to run + 1 tokens, cut at the first end. Returns how many, and their sources."""
        ids: list[int] = []
        text = ""
        while len(ids) <= run and self.reason is None:
            token = next(self.tokens)
            ids.append(token)
            text += self._take(token)
        names: list[SourceName] = ["retrieval" if position % 2 else "copy_logit" for position in range(len(ids) - 1)]
        names.append("target")
        self.sources.update(names)
        top = self.request.logprobs
        scores = () if top is None else _scores(ids, top)
        echoed = self.request.prompt_logprobs and self.emitted == len(ids)  # with the first token
        prompt_scores = (None, *_scores(self.request.prompt_ids[1:], top or 0)) if echoed else ()
        traced = self.request.speculation.trace and self.emitted > len(ids)  # the first token is no step's
        tree = self._tree(ids, names) if traced else None
        before, self.emitted_at = self.emitted_at, time.monotonic()
        self.gap = self.emitted_at - before
        self.sink(Delta(tuple(ids), text, tuple(names), logprobs=scores, prompt_logprobs=prompt_scores, tree=tree))
        self.root = ids[-1]
        return len(ids), Counter(names)

    def _tree(self, ids: Sequence[int], names: Sequence[SourceName]) -> StepTree:
        """The kept drafts in a row, and beside each token a sibling that was not kept, as far as the budget goes."""
        tokens, parents, sources, accepted = [self.root], [-1], ["target"], [0]
        for token, name in zip(ids[:-1], names[:-1], strict=True):
            parents += [accepted[-1]]
            accepted.append(len(tokens))
            tokens.append(token)
            sources.append(name)
        for place in accepted:
            if len(tokens) < self.nodes:
                tokens.append((tokens[place] + 1) % BOS)
                parents.append(place)
                sources.append("copy_logit")
        return StepTree(tuple(tokens), tuple(parents), cast("tuple[SourceName, ...]", tuple(sources)), tuple(accepted))

    def finished(self, reason: FinishReason) -> Finished:
        depth = max(self.histogram, default=0)
        stats = SpeculationStats(
            drafter=self.drafter,
            verifier="exact",
            num_steps=self.steps,
            num_draft_tokens=self.drafted,
            num_accepted_tokens=self.accepted,
            emitted=self.emitted,
            acceptance_histogram=tuple(self.histogram[length] for length in range(depth + 1)),
            tokens_by_source=dict(self.sources),
        )
        rest = "" if isinstance(self.stop_reason, str) else self.held + self.decoder.decode(b"", final=True)
        return Finished(reason, self.stop_reason, rest, len(self.request.prompt_ids), self.emitted, stats)

    def _take(self, token: int) -> str:
        """Count one token; returns the text that can be shown now."""
        stopping = self.request.stopping
        self.emitted += 1
        if token == EOS and not stopping.ignore_eos:
            self.reason = "stop"
        elif token in stopping.stop_token_ids:
            self.reason, self.stop_reason = "stop", token
        else:
            self.held += self.decoder.decode(bytes([token])) if token < BOS else ""
            found = [(self.held.find(stop), stop) for stop in stopping.stop if stop in self.held]
            if found:
                start, self.stop_reason = min(found)
                self.reason = "stop"
                shown, self.held = self.held[:start], ""
                return shown
        if self.reason is None and self.emitted >= self.budget:
            self.reason = "length"
        shown, self.held = _split_held(self.held, stopping.stop)
        return shown


def _scores(ids: Sequence[int], top: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(-0.5, ((token, -0.5), (BOS, -2.0))[:top]) for token in ids)


def _pseudo_text(key: str, answer_tokens: int) -> Iterator[int]:
    """Bytes of words drawn by key; one EOS after the word that reaches answer_tokens, then on without end."""
    random = Random(key)
    count, ended = 0, False
    while True:
        word = f"{random.choice(WORDS)} ".encode()
        yield from word
        count += len(word)
        if count >= answer_tokens and not ended:
            ended = True
            yield EOS


def _split_held(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """What can be shown, and the longest tail that may grow into a stop string."""
    longest = max(map(len, stops), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops):
            return text[:-size], text[-size:]
    return text, ""
