"""Stop strings, and unfinished tags, in text that arrives in pieces."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class _Prefix:
    """How much of one stop string the text ends with. Knuth-Morris-Pratt: amortised constant cost per character."""

    __slots__ = ("_fallback", "length", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = len(stop)
        self.matched = 0
        self._fallback = array("i", [0]) * self.length  # [i]: the longest proper prefix of stop that also ends stop[: i + 1]
        border = 0
        for place in range(1, self.length):
            while border and stop[place] != stop[border]:
                border = self._fallback[border - 1]
            border += stop[place] == stop[border]
            self._fallback[place] = border

    def step(self, character: str) -> bool:
        """Whether this character completes the stop string."""
        while self.matched and self.stop[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        self.matched += self.stop[self.matched] == character
        if self.matched < self.length:
            return False
        self.matched = self._fallback[-1]  # its end may begin the next one
        return True


class StopMatcher:
    """Cuts a text at the stop string that is completed first; of two that end together, the longer one.

    Text that may be the beginning of a stop string is held back. stops: an empty one is a ValueError.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("A stop string may not be empty.")
        # Longest first: of two that end at one character the first to report is the longer.
        self._prefixes = [_Prefix(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._held = ""
        self._hit: str | None = None

    def push(self, text: str, ends: bool = True) -> tuple[str, str | None]:
        """The text that can be shown now, and the stop string that was completed, if any.

        ends: whether a stop string that this text completes counts. Once one has counted, every later call returns no text and
        the same stop string.
        """
        if self._hit is not None:
            return "", self._hit
        if not self._prefixes:
            return text, None
        text = self._held + text
        for place in range(len(self._held), len(text)):
            stop = self._step(text[place])
            if stop is not None and ends:
                self._hit, self._held = stop, ""
                return text[: place + 1 - len(stop)], stop
        keep = len(text) - max(prefix.matched for prefix in self._prefixes)
        self._held = text[keep:]
        return text[:keep], None

    def flush(self) -> str:
        """The text still held back, at the end of the generation."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> str | None:
        hit = None
        for prefix in self._prefixes:
            if prefix.step(character) and hit is None:
                hit = prefix.stop
        return hit


def unfinished_tag(text: str, tag: str) -> int:
    """Characters at the end of a text that may be the beginning of a tag, or white space before it."""
    begun = next(length for length in range(min(len(tag) - 1, len(text)), -1, -1) if text.endswith(tag[:length]))
    body = text[: len(text) - begun]
    return begun + len(body) - len(body.rstrip())
