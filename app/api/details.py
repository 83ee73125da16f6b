"""What a reply tells of single tokens: log-probabilities in OpenAI's two forms, and where each token came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.engine.events import Delta, TokenLogprob
from app.text.codec import TextCodec

LEAST = -9999.0  # stands for minus infinity, which JSON cannot write


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt that a completion gives back before its answer."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request wants to know of tokens; texts of tokens are by this codec."""

    codec: TextCodec
    trace: bool = False
    logprobs: Literal["chat", "completion"] | None = None


@dataclass(slots=True)
class TokenDetails:
    """The details of one choice's tokens, gathered until they are sent."""

    asked: Asked
    _trace: list[dict[str, Any]] = field(default_factory=list)
    _tokens: list[tuple[int, TokenLogprob | None]] = field(default_factory=list)
    _offset: int = 0  # characters of the tokens that were sent

    def add(self, delta: Delta, echo: Echo | None = None) -> None:
        """echo: the prompt, with the first delta of a choice that gives it back."""
        if self.asked.trace:
            self._trace += trace_of(delta, self.asked.codec)
        if self.asked.logprobs is not None:
            if echo is not None:
                self._tokens += zip(echo.ids, delta.prompt_logprobs, strict=True)
            self._tokens += zip(delta.token_ids, delta.logprobs, strict=True)

    def take(self) -> dict[str, Any]:
        """The members of a choice that tell of all tokens added since the last call."""
        members: dict[str, Any] = {}
        if self.asked.logprobs is not None:
            tokens, self._tokens = self._tokens, []
            members["logprobs"] = self._chat(tokens) if self.asked.logprobs == "chat" else self._completion(tokens)
        if self.asked.trace:
            members["trace"], self._trace = self._trace, []
        return members

    def _chat(self, tokens: Sequence[tuple[int, TokenLogprob | None]]) -> dict[str, Any]:
        content = []
        for token, score in tokens:
            if score is not None:
                top = [self._entry(other, value) for other, value in score.top]
                content.append(self._entry(token, score.logprob) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        data = self.asked.codec.token_bytes(token)
        return {"token": _shown(data), "logprob": max(logprob, LEAST), "bytes": list(data)}

    def _completion(self, tokens: Sequence[tuple[int, TokenLogprob | None]]) -> dict[str, Any]:
        texts, offsets, values, tops = [], [], [], []
        for token, score in tokens:
            data = self.asked.codec.token_bytes(token)
            texts.append(_shown(data))
            offsets.append(self._offset)
            self._offset += len(data.decode("utf-8", "ignore"))
            values.append(None if score is None else max(score.logprob, LEAST))
            tops.append(None if score is None else self._likeliest(score))
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _likeliest(self, score: TokenLogprob) -> dict[str, float]:
        """By text; of ids that read alike the likeliest counts."""
        values: dict[str, float] = {}
        for token, value in score.top:
            values.setdefault(_shown(self.asked.codec.token_bytes(token)), max(value, LEAST))
        return values


def trace_of(delta: Delta, codec: TextCodec) -> list[dict[str, Any]]:
    """Source of every token. text is the token on its own, so half a character shows as U+FFFD."""
    return [
        {
            "token": token,
            "text": codec.decode([token], skip_special_tokens=False),
            "source": source,
            "rescued": place in delta.rescued,
        }
        for place, (token, source) in enumerate(zip(delta.token_ids, delta.sources, strict=True))
    ]


def _shown(data: bytes) -> str:
    """A token as text; one that holds part of a character as its bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
