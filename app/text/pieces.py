"""The bytes each token stands for, for the tokenizers whose decoder joins bytes and nothing more."""

from __future__ import annotations

import json
from typing import Any, Literal

# How the decoder treats the space that a tokenizer of this family writes before the first word.
FirstSpace = Literal["keep", "strip_one", "strip_all"]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins, character -> byte: printable Latin-1 is itself, the rest is numbered from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(hidden)}


BYTE_ALPHABET = _byte_alphabet()


class PieceTable:
    """Token id -> bytes, filled as ids are met. Concatenated and decoded as UTF-8 they are the text.

    With such a table a stream needs no second look at earlier tokens, and a character that is spread over tokens appears
    when its last byte does. Ids that are skipped or unknown stand for no bytes.
    """

    def __init__(self, backend: Any, byte_level: bool, first_space: FirstSpace, replacement: str, skip: frozenset[int]) -> None:
        self._backend = backend
        self._byte_level = byte_level
        self._replacement = replacement  # stands for a space in a SentencePiece vocabulary; "": tokens are plain text
        self._first_space = first_space
        self._known: dict[int, bytes] = dict.fromkeys(skip, b"")

    def piece(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            token = self._backend.id_to_token(token_id)
            known = self._known[token_id] = b"" if token is None else self._spell(token)
        return known

    def first_piece(self, token_id: int) -> bytes:
        """The same for the token the text begins with; only a SentencePiece vocabulary tells the two apart."""
        piece = self.piece(token_id)
        if self._first_space == "strip_one":
            return piece.removeprefix(b" ")
        if self._first_space == "strip_all" and piece:
            return str(self._backend.id_to_token(token_id)).replace(self._replacement, "").encode()
        return piece

    def join(self, ids: list[int]) -> bytes:
        """The bytes of a whole text."""
        pieces = [self.piece(token_id) for token_id in ids]
        first = next((place for place, piece in enumerate(pieces) if piece), None)
        if first is not None:
            pieces[first] = self.first_piece(ids[first])
        return b"".join(pieces)

    def _spell(self, token: str) -> bytes:
        if self._byte_level:
            try:
                return bytes(BYTE_ALPHABET[character] for character in token)
            except KeyError:  # an added token that is not written in the byte alphabet
                return token.encode()
        if not self._replacement:
            return token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes.fromhex(token[3:5])
            except ValueError:
                pass
        return token.replace(self._replacement, " ").encode()


def piece_table(backend: Any, skip: frozenset[int]) -> PieceTable | None:
    """A table for this `tokenizers.Tokenizer`, or None when its decoder does more than joining bytes."""
    if backend.decoder is None:
        return None
    steps = _flatten(json.loads(backend.decoder.__getstate__()))
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return PieceTable(backend, True, "keep", "", skip)
    if kinds == ["Metaspace"]:
        first: FirstSpace = "keep" if steps[0].get("prepend_scheme") == "never" else "strip_all"
        return PieceTable(backend, False, first, steps[0]["replacement"], skip)
    if kinds == ["Fuse"]:
        return PieceTable(backend, False, "keep", "", skip)
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and steps[0]["content"] == " " and "String" in steps[0]["pattern"]:
        if steps[3:] == []:
            return PieceTable(backend, False, "keep", steps[0]["pattern"]["String"], skip)
        if steps[3:] == [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]:
            return PieceTable(backend, False, "strip_one", steps[0]["pattern"]["String"], skip)
    return None


def _flatten(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _flatten(inner)]
