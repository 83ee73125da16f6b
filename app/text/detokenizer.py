"""Turns tokens into text one at a time, without ever taking text back.

Own code because tokenizers' DecodeStream has no flush for an unfinished character, withholds text that ends in invalid UTF-8,
and decodes its window again for every token.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

from app.text.pieces import PieceTable

REPLACEMENT = "�"


class Detokenizer(Protocol):
    """The text of a growing list of tokens.

    The texts of all pushes and of the flush, joined, are the text of all ids; with a prompt tail, the text of tail and ids
    without that of the tail. The cost of a call does not depend on the length of the text.
    """

    def push(self, token_id: int) -> str:
        """The text that is certain by now and was not returned before. Bytes of an unfinished character are held back."""

    def flush(self) -> str:
        """What was held back; an unfinished character becomes U+FFFD. Nothing may be pushed afterwards."""


class ByteDetokenizer:
    """For tokenizers whose tokens stand for bytes: the bytes go through a UTF-8 decoder that keeps unfinished characters.

    prompt_tail: the last ids of the text that the answer continues; its text is not returned.
    """

    def __init__(self, table: PieceTable, prompt_tail: Sequence[int] = ()) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = True
        self._owed_to_prompt = ""
        for token_id in prompt_tail:
            self.push(token_id)
        # A prompt that ends inside a character already shows U+FFFD for it (twice for the beginning of a surrogate). They
        # belong to the prompt if the answer does not complete the character.
        self._owed_to_prompt = self._utf8.getstate()[0].decode("utf-8", "replace")

    def push(self, token_id: int) -> str:
        piece = self._table.piece(token_id)
        if not piece:
            return ""
        if self._at_start:
            self._at_start = False
            piece = self._table.first_piece(token_id)
        return self._less_prompt(self._utf8.decode(piece))

    def flush(self) -> str:
        return self._less_prompt(self._utf8.decode(b"", final=True))

    def _less_prompt(self, text: str) -> str:
        if text and self._owed_to_prompt:
            owed, self._owed_to_prompt = self._owed_to_prompt, ""
            return text.removeprefix(owed)
        return text


class WindowDetokenizer:
    """For any other tokenizer: decodes the last few tokens with and without the newest ones and returns the difference.

    decode: of the tokenizer. An unfinished character is held back for at most PATIENCE tokens (UTF-8 needs four bytes).
    """

    PATIENCE = 6

    def __init__(self, decode: Callable[[list[int]], str], skip: frozenset[int], prompt_tail: Sequence[int] = ()) -> None:
        self._decode = decode
        self._skip = skip
        self._window = [token_id for token_id in prompt_tail if token_id not in skip]
        self._returned = len(self._window)  # tokens of the window whose text was returned
        self._window_text = decode(self._window) if self._window else ""

    def push(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        waiting = len(self._window) - self._returned
        if text.endswith(REPLACEMENT) and waiting < self.PATIENCE:
            return ""
        return self._release(text)

    def flush(self) -> str:
        return self._release(self._decode(self._window)) if len(self._window) > self._returned else ""

    def _release(self, text: str) -> str:
        new = text[len(self._window_text) :]
        del self._window[: self._returned]  # keep the tokens just returned as context for the next ones
        self._returned = len(self._window)
        self._window_text = self._decode(self._window)
        return new
