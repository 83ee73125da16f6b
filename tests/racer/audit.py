"""Checks of the whole inner state of an automaton, and of a draft tree."""

from __future__ import annotations

import numpy as np

from racer.automaton import COUNT, FAIL, LAST, PREVIOUS, NgramAutomaton
from racer.hashing import EMPTY, find
from racer.lru import NEWER, OLDER
from racer.tree import CHILD, DEPTH, PARENT, SIBLING, TOKEN, DraftTree

from .naive import Gram, NaiveTrie


def gram_of(automaton: NgramAutomaton, node: int) -> Gram:
    tokens: list[int] = []
    while node:
        tokens.append(int(automaton.trie.nodes[node, TOKEN]))
        node = int(automaton.trie.nodes[node, PARENT])
    return tuple(reversed(tokens))


def recency(automaton: NgramAutomaton) -> list[int]:
    """Nodes, stalest first; checks that the links agree in both directions."""
    order: list[int] = []
    node = int(automaton.trie.links[0, NEWER])
    previous = 0
    while node:
        assert automaton.trie.links[node, OLDER] == previous
        order.append(node)
        assert len(order) <= len(automaton)
        previous, node = node, int(automaton.trie.links[node, NEWER])
    assert automaton.trie.links[0, OLDER] == previous
    return order


def check_against(automaton: NgramAutomaton, naive: NaiveTrie) -> None:
    """Everything the automaton holds equals the model, and no link leads astray."""
    nodes = automaton.trie.nodes
    used = len(automaton)
    grams = {node: gram_of(automaton, node) for node in range(1, used + 1)}
    node_of = {gram: node for node, gram in grams.items()}
    assert {gram: int(nodes[node, COUNT]) for node, gram in grams.items()} == dict(naive.grams)
    assert [grams[node] for node in recency(automaton)] == list(naive.grams)
    assert int((automaton.trie.keys != EMPTY).sum()) == used
    node_of[()] = 0
    for node, gram in grams.items():
        parent = int(nodes[node, PARENT])
        assert nodes[node, DEPTH] == len(gram)
        assert nodes[node, LAST] == naive.last[gram]
        assert nodes[node, FAIL] == node_of[naive.longest_suffix(gram)]
        assert find(automaton.trie.keys, automaton.trie.values, (parent << 32) | gram[-1]) == node
    for node in range(used + 1):
        children: list[int] = []
        child, previous = int(nodes[node, CHILD]), 0
        while child:
            assert nodes[child, PREVIOUS] == previous
            children.append(child)
            assert len(children) <= used
            previous, child = child, int(nodes[child, SIBLING])
        assert sorted(children) == [other for other in grams if nodes[other, PARENT] == node]
        if node:
            assert nodes[node, COUNT] >= nodes[children, COUNT].sum() >= 0
    for length in range(1, min(automaton.n, len(naive.tokens)) + 1):
        assert grams[int(automaton.trie.cursors[length])] == tuple(naive.tokens[-length:])


def paths_of(tree: DraftTree) -> list[Gram]:
    """The token path of each node, the root's being empty."""
    paths: list[Gram] = [()]
    for node in range(1, len(tree)):
        paths.append((*paths[tree.parents[node]], int(tree.tokens[node])))
    return paths


def check_tree(tree: DraftTree, root: int, budget: int, max_depth: int) -> None:
    """The contract of DraftTree, within budget and depth."""
    n = len(tree)
    assert 1 <= n <= max(budget, 1)
    assert tree.tokens[0] == root
    assert tree.parents[0] == -1
    assert tree.depth[0] == 0
    later = np.arange(1, n)
    assert (tree.parents[1:] < later).all()
    assert (tree.parents[1:] >= 0).all()
    assert (tree.depth[1:] == tree.depth[tree.parents[1:]] + 1).all()
    assert tree.depth.max() <= max(max_depth, 0)
    assert (tree.confidence > 0).all()
    assert (tree.confidence <= 1).all()
    paths = paths_of(tree)
    assert len(set(paths)) == n
    dtypes = [array.dtype for array in (tree.tokens, tree.parents, tree.depth, tree.source, tree.confidence)]
    assert dtypes == [np.int64, np.int32, np.int32, np.uint8, np.float32]
