"""The bytes of each token, for tokenizers whose decoder only joins bytes, and the characters that no token can spell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

# How the decoder treats the space that a tokenizer of this family writes before the first word.
FirstSpace = Literal["keep", "strip_one", "strip_all"]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins, character -> byte: printable Latin-1 maps to itself, the rest from U+0100 upwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(hidden)}


BYTE_ALPHABET = _byte_alphabet()


class PieceTable:
    """Token id -> bytes, filled lazily. Concatenated and decoded as UTF-8 they are the text.

    So a stream never decodes earlier tokens again, and a character spread over several tokens appears with its last byte.
    Ids that are skipped or unknown have no bytes.
    """

    def __init__(self, backend: Any, byte_level: bool, first_space: FirstSpace, replacement: str, skip: frozenset[int]) -> None:
        self._backend = backend
        self._byte_level = byte_level
        self._replacement = replacement  # a SentencePiece vocabulary's sign for a space; "": tokens are plain text
        self._first_space = first_space
        self._known: dict[int, bytes] = dict.fromkeys(skip, b"")

    def piece(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            token = self._backend.id_to_token(token_id)
            known = self._known[token_id] = b"" if token is None else self._spell(token)
        return known

    def first_piece(self, token_id: int) -> bytes:
        """The bytes of the first token of a text, which differ in a SentencePiece vocabulary."""
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
    """A table for this `tokenizers.Tokenizer`, or None when its decoder does more than join bytes."""
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


class Unspelled:
    """Counts characters that a vocabulary cannot spell: they vanish from a prompt, or are read as its unknown token.

    tokenizer: a Hugging Face one.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = self._backend = tokenizer.backend_tokenizer
        unknown = getattr(backend.model, "unk_token", None)
        if unknown is None and type(backend.model).__name__ == "Unigram":
            unknown = tokenizer.unk_token
        self._unknown = None if unknown is None else str(unknown)
        self._unknown_id = None if unknown is None else backend.token_to_id(self._unknown)
        lacking = {byte for character, byte in BYTE_ALPHABET.items() if backend.token_to_id(character) is None}
        self._lacking = frozenset(lacking if self._unknown is None and type(backend.decoder).__name__ == "ByteLevel" else ())
        self._spelled = bytes(byte for byte in range(256) if byte not in self._lacking)

    def count(self, text: str, ids: Sequence[int]) -> int:
        """How many characters of a text are missing from its ids."""
        if self._lacking and text.encode().translate(None, self._spelled):
            lost = [character for character in set(text) if not self._lacking.isdisjoint(character.encode())]
            return sum(map(text.count, lost))
        if self._unknown_id is None or self._unknown_id not in ids:
            return 0
        encoding = self._backend.encode_batch([text], add_special_tokens=False)[0]
        parts = [
            text[slice(*place)]
            for token, place in zip(encoding.ids, encoding.offsets, strict=True)
            if token == self._unknown_id
        ]
        return sum(len(part) for part in parts if part != self._unknown)
