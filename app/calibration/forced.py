"""Forced calibration: target and draft read the same text, and every position where their choices differ is counted.

Reading is prefill: hundreds of positions in one pass, where decoding verifies a few. What it counts is not quite what serving
meets (the text need not be the target's own, and a draft in serving stands on its own earlier tokens), hence the comparison
of both modes in docs/csd.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from app.engine.forward.target import Rows, SessionCache, Target
from csd.divergence import Event


@dataclass(frozen=True, slots=True)
class Text:
    """Token ids; positions that predict tokens number `start` to `end` (exclusive; None: all) are compared.

    Nothing predicts token 0, so start 0 is 1.
    """

    key: str
    tokens: tuple[int, ...]
    start: int
    end: int | None = None

    @property
    def stop(self) -> int:
        """The last token that is compared, plus one."""
        return len(self.tokens) if self.end is None else self.end


@dataclass(frozen=True, slots=True)
class ComparedText:
    """What was found in one text."""

    key: str
    positions: int
    events: tuple[Event, ...]


class ForcedReader:
    """Reads texts with both models, several short ones or a chunk of a long one in each pass."""

    def __init__(self, target: Target, draft: Target, *, shared: int, chunk: int = 256) -> None:
        """shared: ids below it mean the same in both vocabularies. chunk: rows of one pass."""
        self._target, self._draft, self._shared, self._chunk = target, draft, shared, chunk

    def read(self, texts: Iterable[Text]) -> Iterator[ComparedText]:
        """One reading per text, in order, as passes are done."""
        group: list[Text] = []
        for text in texts:
            if group and sum(len(one.tokens) for one in group) + len(text.tokens) > self._chunk:
                yield from self._together(group)
                group = []
            group.append(text)
        if group:
            yield from self._together(group)

    @torch.inference_mode()
    def _together(self, texts: Sequence[Text]) -> Iterator[ComparedText]:
        caches = [(self._target.open(len(text.tokens)), self._draft.open(len(text.tokens))) for text in texts]
        found: list[list[Event]] = [[] for _ in texts]
        longest = max(len(text.tokens) for text in texts)
        for start in range(0, longest, self._chunk):
            parts = [(index, text.tokens[start : start + self._chunk]) for index, text in enumerate(texts)]
            parts = [(index, part) for index, part in parts if part]
            ours = self._pass(self._target, [(caches[index][0], part) for index, part in parts])
            theirs = self._pass(self._draft, [(caches[index][1], part) for index, part in parts])
            row = 0
            for index, part in parts:
                first = max(0, texts[index].start - 1 - start)  # the row that predicts token `start`
                last = min(len(part), texts[index].stop - 1 - start)  # the last row of all predicts what is not there
                found[index].extend(
                    _compare(ours[row + first : row + max(first, last)], theirs[row + first : row + max(first, last)])
                )
                row += len(part)
        for text, events in zip(texts, found, strict=True):
            yield ComparedText(text.key, max(0, text.stop - max(1, text.start)), tuple(events))

    def _pass(self, model: Target, parts: Sequence[tuple[SessionCache, Sequence[int]]]) -> torch.Tensor:
        logits = model.forward([Rows.of_text(cache, part) for cache, part in parts])
        for cache, part in parts:
            cache.commit(list(range(len(part))))
        return logits[:, : self._shared]


def _compare(ours: torch.Tensor, theirs: torch.Tensor) -> list[Event]:
    """Divergences between two blocks of logits [n, vocabulary]; ties go to the lower id."""
    if ours.shape[0] == 0:
        return []
    target, draft = ours.argmax(-1), theirs.argmax(-1)
    rows = torch.nonzero(target != draft).flatten()
    gaps = (ours[rows, draft[rows]].float() - ours[rows, target[rows]].float()).tolist()
    return [Event(d, t, gap) for d, t, gap in zip(draft[rows].tolist(), target[rows].tolist(), gaps, strict=True)]
