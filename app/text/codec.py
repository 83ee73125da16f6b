"""Text to token ids and back, for one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.text.chat import ChatTemplate
from app.text.control import ControlNames
from app.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from app.text.grammar_compiler import GrammarCompiler
from app.text.pieces import Unspelled, piece_table
from app.text.surrogates import lone_surrogate
from app.text.thoughts import Thoughts, thoughts_after
from app.text.tool_calls import CallFormat, call_format


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered and tokenised chat. thoughts: where the answer may think; None: it may not.

    dropped: characters that the vocabulary cannot spell.
    """

    ids: list[int]
    thoughts: Thoughts | None = None
    dropped: int = 0


class TextCodec:
    """The tokenizer and the chat template of a model. Thread-safe.

    tokenizer: a Hugging Face tokenizer with a fast backend. eos_ids: the ids that end a generation. chat_template: replaces
    the tokenizer's own. parse_special_tokens: read the names of control tokens in a chat's text as those tokens.
    """

    vocab_size: int  # of the tokenizer, added tokens included; the model may have more rows
    eos_ids: frozenset[int]
    special_ids: frozenset[int]  # control tokens: never shown
    has_chat_template: bool
    grammars: GrammarCompiler

    def __init__(
        self,
        tokenizer: Any,
        eos_ids: frozenset[int],
        chat_template: str | None = None,
        *,
        parse_special_tokens: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        # The wrapper sets truncation and padding on every call, which is not thread-safe, so its backend is used.
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._chat = ChatTemplate(tokenizer, chat_template)
        added = self._backend.get_added_tokens_decoder()
        self.vocab_size = max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.eos_ids = frozenset(eos_ids)
        control = {token_id for token_id, token in added.items() if token.special} | set(tokenizer.all_special_ids)
        self._tags = self._chat.tags
        tags = {self._backend.token_to_id(tag) for tag in self._tags or ()}
        self.special_ids = frozenset(control - tags)  # tags of thoughts are parsed as text
        self.has_chat_template = self._chat.present
        self._shown = piece_table(self._backend, skip=self.special_ids)
        self._all = piece_table(self._backend, skip=frozenset())
        self.grammars = GrammarCompiler(self)
        self._names = None if parse_special_tokens else ControlNames(self._backend)
        self._unspelled = Unspelled(tokenizer)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids. add_special_tokens: with those that the tokenizer puts around a text, such as BOS. Raises ValueError."""
        _refuse_surrogates(text)
        # The batch call releases the GIL while it tokenises, the single one does not.
        return list(self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)

    def encode_chat(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None) -> list[int]:
        """Token ids of the rendered messages. Raises ChatTemplateError."""
        return self.read_chat(messages, tools).ids

    def read_chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """Render and tokenise a chat. options: more template variables. Raises ChatTemplateError, ValueError."""
        rendered, shield = self._chat.render(messages, tools, options, self._names)
        thoughts = None if self._tags is None else thoughts_after(rendered, self._tags)
        text = shield.restored(rendered)
        _refuse_surrogates(text)
        if self._names is not None and shield.back:
            ids = self._names.encode(rendered, shield)
        else:
            ids = self.encode(text, add_special_tokens=False)  # the template writes BOS itself
        return ChatPrompt(ids, thoughts, self.dropped(text, ids))

    def render_chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text that the template makes of the messages. Raises ChatTemplateError."""
        rendered, shield = self._chat.render(messages, tools, options, self._names)
        return shield.restored(rendered)

    def dropped(self, text: str, ids: Sequence[int]) -> int:
        """How many characters of a text its ids leave out, or replace by the unknown token."""
        return self._unspelled.count(text, ids)

    def call_format(self) -> CallFormat:
        """How the model writes tool calls, according to its template. Raises ChatTemplateError for an unsupported format."""
        return call_format(self._chat.with_tools, self._control_id)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text, without clean-up of spaces. Invalid UTF-8 becomes U+FFFD; unknown ids are skipped."""
        table = self._shown if skip_special_tokens else self._all
        if table is not None:
            return table.join(list(ids)).decode("utf-8", "replace")
        if skip_special_tokens:
            ids = [token_id for token_id in ids if token_id not in self.special_ids]
        return self._decode_all(list(ids))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; of a special token, its name."""
        if self._all is not None:
            return self._all.piece(token_id)
        return self._decode_all([token_id]).encode()

    def detokenizer(self, prompt_tail: Sequence[int] = ()) -> Detokenizer:
        """A detokenizer for one answer. prompt_tail: the last ids before the answer, so that its first space is kept."""
        if self._shown is not None:
            return ByteDetokenizer(self._shown, prompt_tail)
        return WindowDetokenizer(self._decode_all, self.special_ids, prompt_tail)

    def vocabulary_bytes(self) -> list[bytes] | None:
        """The bytes of every id below vocab_size; None where the decoder does more than join bytes."""
        return None if self._all is None else [self._all.piece(token_id) for token_id in range(self.vocab_size)]

    def _control_id(self, name: str) -> int | None:
        token_id = self._backend.token_to_id(name)
        return token_id if token_id in self.special_ids else None

    def _decode_all(self, ids: list[int]) -> str:
        return str(self._backend.decode(ids, skip_special_tokens=False))


def _refuse_surrogates(text: str) -> None:
    found = lone_surrogate(text)
    if found is not None:
        raise ValueError(f"The text holds a lone surrogate (U+{ord(found):04X}), which is not a character.")
