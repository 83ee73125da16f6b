"""A session with everything in it, as a digest: run compiled and as plain Python, the two must agree."""

from __future__ import annotations

import hashlib

import numpy as np

from racer.copy_logits import CopyLogitTable
from racer.drafter import RacerConfig
from racer.paper import RacerDrafter


def digest() -> str:
    rng = np.random.default_rng(11)
    base = CopyLogitTable(4, 50)
    drafter = RacerDrafter(RacerConfig(ngram=5, automaton_nodes=90, breadth=4, table_rows=30), base)
    state = hashlib.sha256()
    tokens = (rng.integers(0, 6, 400) * 357_913_941).astype(np.int64)
    for start in range(0, 400, 5):
        chunk = tokens[start : start + 5]
        drafter.observe(chunk)
        drafter.learn(rng.permutation(chunk), rng.choice(tokens, (5, 4)), rng.random((5, 4)))
        tree = drafter.propose(int(rng.integers(1, 40)), int(rng.integers(0, 9)))
        for array in (tree.tokens, tree.parents, tree.depth, tree.source, tree.confidence):
            state.update(array.tobytes())
    for array in drafter.automaton.trie:
        state.update(array.tobytes())
    return state.hexdigest()


if __name__ == "__main__":
    print(digest())
