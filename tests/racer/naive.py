"""Slow models of the automaton and the retrieval order, written from the rules alone."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

Gram = tuple[int, ...]


class NaiveTrie:
    """n-gram -> count, in recency order (stalest first)."""

    def __init__(self, n: int, capacity: int) -> None:
        self.n = n
        self.capacity = capacity
        self.tokens: list[int] = []
        self.grams: OrderedDict[Gram, int] = OrderedDict()
        self.last: dict[Gram, int] = {}

    def append(self, token: int) -> None:
        self.tokens.append(token)
        longest = min(self.n, len(self.tokens))
        for length in range(1, longest + 1):
            gram = tuple(self.tokens[-length:])
            if gram not in self.grams:
                if len(self.grams) == self.capacity:
                    self._evict()
                self.grams[gram] = 0
            self.grams.move_to_end(gram)
            self.grams[gram] += 1
            self.last[gram] = len(self.tokens) - 1
        for length in range(longest, 0, -1):
            window = tuple(self.tokens[-length:])
            for end in range(length, 0, -1):
                self.grams.move_to_end(window[:end])

    def _evict(self) -> None:
        victim, count = self.grams.popitem(last=False)
        for end in range(1, len(victim)):
            self.grams[victim[:end]] -= count

    def children(self, gram: Gram) -> list[Gram]:
        return [other for other in self.grams if other[:-1] == gram]

    def longest_suffix(self, gram: Gram) -> Gram:
        """The longest proper suffix that is stored; () stands for the root."""
        return next((gram[start:] for start in range(1, len(gram)) if gram[start:] in self.grams), ())

    def states(self, min_match: int) -> list[Gram]:
        """Stored suffixes of the context of at least min_match tokens, longest first."""
        suffixes = (tuple(self.tokens[-length:]) for length in range(min(self.n, len(self.tokens)), min_match - 1, -1))
        return [suffix for suffix in suffixes if suffix in self.grams]

    def ranked_paths(self, max_depth: int, min_match: int) -> list[Gram]:
        """Every continuation of the context, as a token path from the root, in the order of the retrieval."""
        best: dict[Gram, tuple[int, int, int, int]] = {}
        pending: list[tuple[Gram, Gram]] = [((), state) for state in self.states(min_match)]
        while pending:
            path, state = pending.pop()
            if len(path) == max_depth:
                continue
            for gram in self.children(state):
                count = self.grams[gram]
                longer = (*path, gram[-1])
                rank = (-count, len(longer), -len(gram), -self.last[gram])
                best[longer] = min(best.get(longer, rank), rank)
                pending.append((longer, gram))

        def key(path: Gram) -> tuple[Any, ...]:
            return (best[path], key(path[:-1])) if path else ()

        return sorted(best, key=key)
