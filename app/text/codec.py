"""Text to token ids and back, for one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.text.chat import ChatTemplate
from app.text.control import ControlNames
from app.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from app.text.grammar import GrammarCompiler
from app.text.pieces import piece_table
from app.text.thoughts import Thoughts, thoughts_after
from app.text.tool_calls import CallFormat, call_format
from app.text.unspelled import Unspelled


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat as the model reads it. thoughts: where its answer may think; None: it does not, or no more.

    dropped: characters that the vocabulary cannot spell.
    """

    ids: list[int]
    thoughts: Thoughts | None = None
    dropped: int = 0


class TextCodec:
    """The tokenizer and the chat template of a model. Every method may be called from several threads at once.

    tokenizer: a Hugging Face tokenizer with a fast backend. eos_ids: the ids that end a generation. chat_template: used in
    place of the tokenizer's own. parse_special_tokens: names of control tokens in the text of a chat are those tokens.
    """

    vocab_size: int  # ids below this can be sent; added tokens included, rows the model has beyond them not
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
        # The wrapper sets truncation and padding on each call, which two threads would do to each other: use its backend.
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
        self.special_ids = frozenset(control - tags)  # thoughts are told from the answer by their tags
        self.has_chat_template = self._chat.present
        self._shown = piece_table(self._backend, skip=self.special_ids)
        self._all = piece_table(self._backend, skip=frozenset())
        self.grammars = GrammarCompiler(self)
        self._names = None if parse_special_tokens else ControlNames(self._backend)
        self._unspelled = Unspelled(tokenizer)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids; with add_special_tokens also what the tokenizer puts around a text (BOS). Raises ValueError."""
        _refuse_surrogates(text)
        # The batch call releases the GIL, the single one does not: other threads go on while a long text is cut.
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
        """A chat as the model reads it; options: more variables of the template. Raises ChatTemplateError, ValueError."""
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
        """The prompt text the template makes of the messages, up to where the answer starts. Raises ChatTemplateError."""
        rendered, shield = self._chat.render(messages, tools, options, self._names)
        return shield.restored(rendered)

    def dropped(self, text: str, ids: Sequence[int]) -> int:
        """Characters of a text that the vocabulary cannot spell, by its ids: left out, or read as the unknown token."""
        return self._unspelled.count(text, ids)

    def call_format(self) -> CallFormat:
        """How the model writes tool calls, after its template. Raises ChatTemplateError for a format that is not read here."""
        return call_format(self._chat.with_tools, self._control_id)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text, without clean-up of spaces. Bytes that are not UTF-8 are U+FFFD, unknown ids nothing."""
        table = self._shown if skip_special_tokens else self._all
        if table is not None:
            return table.join(list(ids)).decode("utf-8", "replace")
        if skip_special_tokens:
            ids = [token_id for token_id in ids if token_id not in self.special_ids]
        return self._decode_all(list(ids))

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to a text, special tokens by their names. A lone byte of a character is that byte."""
        if self._all is not None:
            return self._all.piece(token_id)
        return self._decode_all([token_id]).encode()

    def detokenizer(self, prompt_tail: Sequence[int] = ()) -> Detokenizer:
        """A detokenizer for one answer. prompt_tail: the last ids of the text it continues, so that it keeps its space."""
        if self._shown is not None:
            return ByteDetokenizer(self._shown, prompt_tail)
        return WindowDetokenizer(self._decode_all, self.special_ids, prompt_tail)

    def vocabulary_bytes(self) -> list[bytes] | None:
        """The bytes every id below vocab_size stands for, control tokens by their names; None for a decoder that does more
        than joining bytes."""
        return None if self._all is None else [self._all.piece(token_id) for token_id in range(self.vocab_size)]

    def _control_id(self, name: str) -> int | None:
        token_id = self._backend.token_to_id(name)
        return token_id if token_id in self.special_ids else None

    def _decode_all(self, ids: list[int]) -> str:
        return str(self._backend.decode(ids, skip_special_tokens=False))


def _refuse_surrogates(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"The text holds a lone surrogate (U+{ord(text[error.start]):04X}), which is not a character."
        raise ValueError(problem) from None
