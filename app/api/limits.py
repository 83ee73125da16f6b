"""Size limits of requests, checked before the content is processed, so that a refusal is cheap."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.api.errors import ApiError, bad_value
from app.engine.errors import ContextLengthExceeded
from app.engine.interface import ModelInfo
from app.engine.request import GenerationRequest
from app.settings import Settings

MAX_MESSAGES = 4096
MAX_ITEMS = 100_000  # strings, lists and objects of one body
MAX_ECHOED_SCORES = 1_000_000  # log-probabilities of echoed tokens in one reply: some 100 bytes of memory each
MAX_ECHOED_CHARS = 16_000_000
CHARS_PER_TOKEN = 32  # ordinary text has about 4; only blanks and repetitions have far more
# Possessive, and matches unterminated strings too: no character is scanned twice.
_ITEM = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one generation. context: tokens of prompt and answer together."""

    context: int
    prompt_tokens: int
    prompt_chars: int
    output_tokens: int | None = None

    @classmethod
    def of(cls, settings: Settings, info: ModelInfo) -> Limits:
        tokens = min(settings.max_prompt_tokens or info.max_context, info.max_context)
        chars = settings.max_prompt_chars or tokens * CHARS_PER_TOKEN
        return cls(info.max_context, tokens, chars, settings.max_output_tokens)

    def check_budget(self, budget: int | None, param: str) -> None:
        """Raises ApiError 400 if the requested answer is longer than this server allows."""
        if budget is not None and self.output_tokens is not None and budget > self.output_tokens:
            raise bad_value(f"`{param}` may be at most {self.output_tokens} on this server.", param)

    def fit(self, request: GenerationRequest, param: str) -> GenerationRequest:
        """The request, with max_tokens set where the client gave none or too many.

        Raises ApiError 400 for too long a prompt, and for a `min_tokens` above the limit.
        """
        prompt, wanted = len(request.prompt_ids), request.stopping.max_tokens
        if prompt > self.prompt_tokens and prompt < self.context:  # from the context length on, the engine refuses it
            raise _too_long(f"{prompt} tokens", f"{self.prompt_tokens} tokens", param)
        if prompt >= self.context:
            return request
        most = self.context - prompt if wanted is None else wanted
        bounded = most if self.output_tokens is None else min(most, self.output_tokens)
        if request.stopping.min_tokens > bounded:
            message = (
                f"`min_tokens` may be at most {bounded} here, the most tokens of this answer: lower it or set `max_tokens`."
            )
            raise bad_value(message, "min_tokens")
        if self.output_tokens is None:
            return request
        return replace(request, stopping=replace(request.stopping, max_tokens=bounded))


def check_items(raw: bytes) -> None:
    """Raises ApiError 400 for JSON with too many items: parsing is one call into C, during which no other request runs."""
    if raw.count(b'"') // 2 + raw.count(b"[") + raw.count(b"{") <= MAX_ITEMS:
        return
    items = _ITEM.finditer(raw)  # brackets in strings are text
    if next(itertools.islice(items, MAX_ITEMS, None), None) is not None:
        raise bad_value(f"The body may hold at most {MAX_ITEMS} strings, lists and objects.", code="invalid_json")


def check_messages(data: Mapping[str, Any]) -> None:
    """Raises ApiError 400 for too many messages. RequestModel limits the fields of objects, at every level."""
    messages = data.get("messages")
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise bad_value(f"`messages` may hold at most {MAX_MESSAGES} messages.", "messages")


def check_echo(scores: int, characters: int) -> None:
    """Raises ApiError 400 for `echo` of more than one reply may hold."""
    if scores > MAX_ECHOED_SCORES:
        message = f"`echo` with `logprobs` gives back at most {MAX_ECHOED_SCORES} log-probabilities of prompts, here {scores}"
        raise bad_value(f"{message}: lower `logprobs` or `n`, or send fewer prompts.", "echo")
    if characters > MAX_ECHOED_CHARS:
        message = f"`echo` gives back at most {MAX_ECHOED_CHARS} characters, here {characters}"
        raise bad_value(f"{message}: lower `n`, or send fewer prompts.", "echo")


def check_prompt(data: Mapping[str, Any], limits: Limits) -> None:
    """Raises ContextLengthExceeded for ids that fill the context, ApiError 400 for text that is too long to tokenise."""
    messages, prompt = data.get("messages"), data.get("prompt")
    if isinstance(messages, list):
        characters = sum(_length(message.get("content")) for message in messages if isinstance(message, dict))
        _check_characters(characters, limits, "messages")
    if isinstance(prompt, str):
        _check_characters(len(prompt), limits, "prompt")
    if not isinstance(prompt, list) or not prompt:
        return
    _check_characters(max((len(text) for text in prompt if isinstance(text, str)), default=0), limits, "prompt")
    if isinstance(prompt[0], int):
        longest = len(prompt)
    else:
        longest = max((len(ids) for ids in prompt if isinstance(ids, list)), default=0)
    if longest >= limits.context:
        raise ContextLengthExceeded(longest, None, limits.context)
    if longest > limits.prompt_tokens:
        raise _too_long(f"{longest} tokens", f"{limits.prompt_tokens} tokens", "prompt")


def _check_characters(count: int, limits: Limits, param: str) -> None:
    if count > limits.prompt_chars:
        most = f"{limits.prompt_chars} characters and {limits.prompt_tokens} tokens"
        raise _too_long(f"{count} characters", most, param)


def _length(content: Any) -> int:
    """Characters of a message's content: a string, or parts with texts."""
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, list):
        return 0
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return sum(len(text) for text in texts if isinstance(text, str))


def _too_long(found: str, most: str, param: str) -> ApiError:
    message = f"The prompt has {found}; this server takes at most {most}. Shorten it."
    return bad_value(message, param, "context_length_exceeded")
