"""What a reply says about single tokens: log-probabilities in OpenAI's two forms, and the source of each token."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.engine.events import Delta, StepTree, TokenLogprob
from app.text.codec import TextCodec

MIN_LOGPROB = -9999.0  # in place of minus infinity, which JSON cannot write


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt that a completion repeats before its answer. dropped: characters of it that no token stands for."""

    text: str
    ids: tuple[int, ...]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class DetailOptions:
    """What a request wants to know about tokens. codec: gives their texts."""

    codec: TextCodec
    trace: bool = False
    logprobs: Literal["chat", "completion"] | None = None
    _names: dict[int, str] = field(default_factory=dict, compare=False)

    def name(self, token: int) -> str:
        """The token as text, cached: a long reply names the same tokens many times."""
        name = self._names.get(token)
        if name is None:
            name = self._names[token] = _shown(self.codec.token_bytes(token))
        return name


@dataclass(slots=True)
class TokenDetails:
    """The details of one choice's tokens, collected until they are sent."""

    options: DetailOptions
    _trace: list[dict[str, Any]] = field(default_factory=list)
    _tokens: list[tuple[int, TokenLogprob | None]] = field(default_factory=list)
    _offsets: list[int] = field(default_factory=list)  # where these tokens begin in the choice's text
    _tree: StepTree | None = None  # of the latest step
    _offset: int = 0  # characters of the text so far
    _ahead: int = 0  # characters of the echo that no token stands for and that are still to come
    _utf8: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def add(self, delta: Delta, echo: Echo | None = None) -> None:
        """echo: the prompt, with the first delta of a choice that repeats it."""
        if self.options.trace:
            self._trace += trace_of(delta, self.options.codec)
            self._tree = delta.tree or self._tree
        if self.options.logprobs is not None:
            if echo is not None:
                self._tokens += zip(echo.ids, delta.prompt_logprobs, strict=True)
                self._ahead = echo.dropped
                self._offsets += [self._place(token, echo.text) for token in echo.ids]
                self._offset, self._ahead = len(echo.text), 0
            self._tokens += zip(delta.token_ids, delta.logprobs, strict=True)
            self._offsets += [self._place(token) for token in delta.token_ids]

    def take(self, *, tree: bool = False) -> dict[str, Any]:
        """The members of a choice for all tokens added since the last call. tree: include the latest draft tree."""
        members: dict[str, Any] = {}
        if self.options.logprobs is not None:
            tokens, self._tokens = self._tokens, []
            offsets, self._offsets = self._offsets, []
            members["logprobs"] = self._chat(tokens) if self.options.logprobs == "chat" else self._completion(tokens, offsets)
        if self.options.trace:
            members["trace"], self._trace = self._trace, []
            if tree and self._tree is not None:
                members["draft_tree"], self._tree = tree_of(self._tree, self.options.codec), None
        return members

    def _place(self, token: int, echo: str = "") -> int:
        """Where a token begins in the text. Tokens that are parts of one character share its position.

        Special tokens are visible only in an echo, and there only where the client wrote them.
        """
        place, data = self._offset, self.options.codec.token_bytes(token)
        written = _shown(data)
        if token in self.options.codec.special_ids and echo.find(written, place, place + self._ahead + len(written)) < 0:
            return place
        text = self._utf8.decode(data)
        if echo and not place and not echo.startswith(" "):
            text = text.removeprefix(" ")  # which some tokenizers put before every text
        if self._ahead and text:
            found = echo.find(text, place, place + self._ahead + len(text))
            if found < 0:  # the rest of a character that was dropped in part
                return place
            self._ahead -= found - place
            place = found
        self._offset = place + len(text)
        return place

    def _chat(self, tokens: Sequence[tuple[int, TokenLogprob | None]]) -> dict[str, Any]:
        content = []
        for token, score in tokens:
            if score is not None:
                top = [self._entry(other, value) for other, value in score.top]
                content.append(self._entry(token, score.logprob) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        data = self.options.codec.token_bytes(token)
        return {"token": self.options.name(token), "logprob": max(logprob, MIN_LOGPROB), "bytes": list(data)}

    def _completion(self, tokens: Sequence[tuple[int, TokenLogprob | None]], offsets: list[int]) -> dict[str, Any]:
        return {
            "tokens": [self.options.name(token) for token, _ in tokens],
            "token_logprobs": [None if score is None else max(score.logprob, MIN_LOGPROB) for _, score in tokens],
            "top_logprobs": [None if score is None else self._top(token, score) for token, score in tokens],
            "text_offset": offsets,
        }

    def _top(self, token: int, score: TokenLogprob) -> dict[str, float]:
        """Text -> log-probability, the token itself included. Ids with the same text: the token wins, else the likeliest."""
        values: dict[str, float] = {}
        for other, value in score.top:
            values.setdefault(self.options.name(other), max(value, MIN_LOGPROB))
        return values | {self.options.name(token): max(score.logprob, MIN_LOGPROB)}


def trace_of(delta: Delta, codec: TextCodec) -> list[dict[str, Any]]:
    """The source of every token. text: the token decoded alone, so half a character is U+FFFD."""
    return [
        {
            "token": token,
            "text": codec.decode([token], skip_special_tokens=False),
            "source": source,
            "rescued": place in delta.rescued,
        }
        for place, (token, source) in enumerate(zip(delta.token_ids, delta.sources, strict=True))
    ]


def tree_of(tree: StepTree, codec: TextCodec) -> dict[str, Any]:
    """The draft tree of one step with the text of every node."""
    return {
        "tokens": [codec.decode([token], skip_special_tokens=False) for token in tree.tokens],
        "parents": tree.parents,
        "sources": tree.sources,
        "accepted": tree.accepted,
    }


def _shown(data: bytes) -> str:
    """A token as text, or as its bytes where it holds only part of a character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
