"""The drafting kernels timed alone: observe, propose and learn by policy, context length and kind of text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.environment import machine
from bench.kernels_csd import measure_rescue
from bench.markdown import table
from racer.drafter import Policy, RacerConfig
from racer.factory import new_drafter
from racer.tree import DraftTree, Float32Array, Int64Array

VOCABULARY = 152_000
CONTEXTS = (1024, 8192, 32_768)
POLICIES: tuple[Policy, ...] = ("paper", "auto")
TEXTS = ("repetitive", "periodic", "random")
NODES = 64
PERIOD = 97
PROMPT = 4096
MAX_DEPTH = 256
CHUNK = 1024  # tokens of context fed at once
KNOWN = 4096  # different tokens of a random text; tokens outside the text that have rows


def measure_kernels(
    *,
    policies: Sequence[Policy] = POLICIES,
    contexts: Sequence[int] = CONTEXTS,
    rounds: int = 300,
    prompt: int = PROMPT,
    vocabulary: int = VOCABULARY,
) -> dict[str, Any]:
    """Median and p99 of `rounds` calls each, in microseconds; prompt insertion in ms; bytes of a session's state."""
    rows, prompts, state = [], [], []
    for policy in policies:
        _context_figures(policy, "periodic", 256, 10, vocabulary)  # compiles
        for kind in TEXTS:
            rows += [_context_figures(policy, kind, context, rounds, vocabulary) for context in contexts]
            prompts.append(
                {"policy": policy, "text": kind, "tokens": prompt, "ms": _insertion(policy, kind, prompt, vocabulary)}
            )
        state.append({"policy": policy, "vocabulary": vocabulary, "bytes": _state(policy, vocabulary)})
    return {
        "environment": machine(),
        "nodes": NODES,
        "steps": rows,
        "prompts": prompts,
        "state": state,
        "rescue": measure_rescue(rounds, vocabulary),
    }


def text(kind: str, length: int, vocabulary: int = VOCABULARY) -> Int64Array:
    """repetitive: one token over and over; periodic: 97 tokens over and over; random: no pattern, of 4,096 tokens."""
    rng = np.random.default_rng(0)
    if kind == "repetitive":
        return np.full(length, 7, np.int64)
    if kind == "periodic":
        return np.resize(rng.integers(0, vocabulary, PERIOD), length).astype(np.int64)
    return rng.choice(rng.integers(0, vocabulary, KNOWN), length).astype(np.int64)


def as_table(report: dict[str, Any]) -> str:
    """The report as Markdown tables."""
    calls = {"propose": "draft", "learn": f"learn {report['nodes']} rows", "observe": "take in one token"}
    named = [f"{name}, {what}, µs" for name in calls.values() for what in ("median", "p99")]
    head = ["policy", "text", "context", *named, "nodes drafted"]
    rows = [
        [
            row["policy"],
            row["text"],
            str(row["context"]),
            *[f"{row[call][what]:.1f}" for call in calls for what in ("median", "p99")],
            f"{row['nodes']:.0f}",
        ]
        for row in report["steps"]
    ]
    prompts = [[row["policy"], row["text"], str(row["tokens"]), f"{row['ms']:.2f}"] for row in report["prompts"]]
    state = [[row["policy"], str(row["vocabulary"]), f"{row['bytes'] / 2**20:.2f}"] for row in report["state"]]
    rescue = [[name, f"{microseconds:.2f}"] for name, microseconds in report["rescue"].items()]
    return "\n\n".join(
        [
            f"draft: up to {report['nodes']} nodes; learn: rows of 8 successors, the verdict included.",
            table(head, rows),
            table(["policy", "text", "tokens of the prompt", "take in the prompt, ms"], prompts),
            table(["policy", "vocabulary", "state, MiB"], state),
            table(["csd, at a chain of 6 with one mismatch", "median, µs"], rescue),
        ]
    )


def _context_figures(policy: Policy, kind: str, context: int, rounds: int, vocabulary: int) -> dict[str, Any]:
    tokens = text(kind, context + rounds, vocabulary)
    extra = np.random.default_rng(1).integers(0, vocabulary, KNOWN)
    reader = _Reader(policy, tokens[:context], np.concatenate([tokens, extra]))
    seconds: dict[str, list[float]] = {"observe": [], "propose": [], "learn": []}
    nodes = 0
    for token in tokens[context:]:
        seconds["observe"].append(reader.observe(int(token)))
        took, tree = reader.propose()
        seconds["propose"].append(took)
        seconds["learn"].append(reader.learn(tree, int(token)))
        nodes += len(tree)
    figures = {call: _quantiles(times) for call, times in seconds.items()}
    return {"policy": policy, "text": kind, "context": context, **figures, "nodes": nodes / rounds}


class _Reader:
    """A drafter that has read a text. Rows name tokens of `known`, which all have rows, so that copy-logit trees get full."""

    def __init__(self, policy: Policy, tokens: Int64Array, known: Int64Array) -> None:
        self._rng = np.random.default_rng(2)
        self._pool = np.unique(known)
        self.drafter = new_drafter(policy, RacerConfig())
        self.drafter.learn(self._pool, *self._rows(self._pool.size), np.full(self._pool.size, -1))
        for start in range(0, tokens.size, CHUNK):
            chunk = tokens[start : start + CHUNK]
            self.drafter.observe(chunk)
            before = np.concatenate([[tokens[start - 1] if start else -1], chunk[:-1]])
            self.drafter.learn(chunk, *self._rows(chunk.size), before)

    def observe(self, token: int) -> float:
        one = np.array([token], np.int64)
        started = time.perf_counter()
        self.drafter.observe(one)
        return time.perf_counter() - started

    def propose(self) -> tuple[float, DraftTree]:
        started = time.perf_counter()
        tree = self.drafter.propose(NODES, MAX_DEPTH)
        return time.perf_counter() - started, tree

    def learn(self, tree: DraftTree, truth: int) -> float:
        """Seconds to take in the rows of a tree of which nothing was accepted."""
        tokens = np.resize(tree.tokens, NODES)
        before = np.resize(tree.tokens[np.maximum(tree.parents, 0)], NODES)
        ids, probs = self._rows(NODES)
        started = time.perf_counter()
        self.drafter.judge(len(tree), (0,), truth)
        self.drafter.learn(tokens, ids, probs, before)
        return time.perf_counter() - started

    def _rows(self, count: int) -> tuple[Int64Array, Float32Array]:
        """Rows of eight distinct ids and falling probabilities."""
        first = self._rng.integers(0, self._pool.size, count)
        ids = self._pool[(first[:, None] + np.arange(8)) % self._pool.size]
        return ids, np.tile(0.5 ** np.arange(1, 9, dtype=np.float32), (count, 1)).astype(np.float32)


def _insertion(policy: Policy, kind: str, length: int, vocabulary: int) -> float:
    """Milliseconds to read a prompt into a fresh drafter, median of five."""
    tokens = text(kind, length, vocabulary)
    times = []
    for _ in range(5):
        drafter = new_drafter(policy, RacerConfig())
        started = time.perf_counter()
        drafter.observe(tokens)
        times.append(time.perf_counter() - started)
    return 1e3 * float(np.median(times))


def _state(policy: Policy, vocabulary: int) -> int | None:
    """Bytes of a session that has seen the whole vocabulary, in a text without repeats."""
    tokens = np.random.default_rng(3).permutation(vocabulary).astype(np.int64)
    size = getattr(_Reader(policy, tokens, tokens).drafter, "nbytes", None)
    return None if size is None else int(size)


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    median, late = np.quantile(np.asarray(seconds), [0.5, 0.99])
    return {"median": 1e6 * float(median), "p99": 1e6 * float(late)}
