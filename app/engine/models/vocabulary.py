"""Compares the vocabularies of draft model and target token by token, since equal sizes and names prove nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from app.engine.errors import ModelLoadError
from app.text.codec import TextCodec
from racer.tree import BoolArray


@dataclass(frozen=True, slots=True)
class SharedVocabulary:
    """The ids that mean the same token in both models.

    known bool [n]: whether an id is shared. n is one more than the largest shared id.
    """

    known: BoolArray

    @property
    def size(self) -> int:
        return len(self.known)

    @property
    def complete(self) -> bool:
        """Whether every id below `size` is shared."""
        return bool(self.known.all())

    def holds(self, ids: Iterable[int]) -> bool:
        """Whether the draft model can read all of these ids of the target."""
        return all(0 <= token < len(self.known) and bool(self.known[token]) for token in ids)


def share_vocabulary(target: TextCodec, draft: TextCodec, target_rows: int, draft_rows: int) -> SharedVocabulary:
    """Compare the tokenizers by content. target_rows, draft_rows: ids that the models can emit and read.

    Ids that only one model has, padding included, are left out. Raises ModelLoadError for an id that means two tokens or is
    special in one model only, and for models that share no end token.
    """
    ours, theirs = _strings(target, target_rows), _strings(draft, draft_rows)
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        raise ModelLoadError("The draft model shares no token with the target: use a draft of the target's family.")
    for token in common:
        if ours[token] != theirs[token]:
            raise ModelLoadError(
                f"The draft model has another vocabulary: token {token} is {ours[token]!r} in the target "
                f"and {theirs[token]!r} in the draft. Use a draft of the target's family."
            )
    for token in common:
        special = token in target.special_ids
        if special is not (token in draft.special_ids):
            where = "the target" if special else "the draft"
            raise ModelLoadError(
                f"The draft model has another vocabulary: token {token} ({ours[token]!r}) is a special token "
                f"in {where} only. Use a draft of the target's family."
            )
    if target.eos_ids and draft.eos_ids and not target.eos_ids & draft.eos_ids:
        raise ModelLoadError(
            f"The draft model ends its answers with token {min(draft.eos_ids)}, the target with token {min(target.eos_ids)}. "
            "Use a draft of the target's family."
        )
    known = np.zeros(common[-1] + 1, np.bool_)
    known[common] = True
    return SharedVocabulary(known)


def _strings(codec: TextCodec, rows: int) -> dict[int, str]:
    vocabulary: dict[str, int] = codec.tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True)
    return {token: text for text, token in vocabulary.items() if token < rows}
