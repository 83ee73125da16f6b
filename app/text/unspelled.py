"""Characters that a model's vocabulary cannot spell: they vanish from a prompt, or are read as its unknown token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.text.pieces import BYTE_ALPHABET


class Unspelled:
    """Counts them for one tokenizer of transformers."""

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
        """Characters of a text that its ids do not tell of."""
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
