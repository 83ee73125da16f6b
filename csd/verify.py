"""The walk: which of a draft tree's tokens the target keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from racer.tree import DraftTree, Source

Choose = Callable[[int, int], int]  # (node, tokens emitted before in this step) -> the target's token after that node


@dataclass(frozen=True, slots=True)
class Walk:
    """What one step emits.

    path: nodes kept, root first; its rows of KV stay. tokens: emitted tokens, one more than drafts kept, since the target's
    own token always ends a walk. sources: where each came from.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    sources: tuple[Source, ...]

    @property
    def accepted(self) -> int:
        """Draft tokens kept."""
        return len(self.path) - 1


def walk_exact(tree: DraftTree, choose: Choose) -> Walk:
    """Follow the target's own choice from the root for as long as a child carries it.

    The target's token is drawn first and then looked for among the children, so whatever was drafted, the emitted tokens
    are the target's: greedy decoding stays greedy, and a sample keeps its distribution.
    """
    path = [0]
    tokens: list[int] = []
    sources: list[Source] = []
    node = 0
    while True:
        token = choose(node, len(tokens))
        tokens.append(token)
        child = tree.child_with(node, token)
        if child < 0:
            sources.append(Source.TARGET)
            return Walk(tuple(path), tuple(tokens), tuple(sources))
        sources.append(Source(int(tree.source[child])))
        path.append(child)
        node = child
