"""From samples to figures: what one way did, and what it did beside plain decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.load.sample import Sample
from bench.statistics import ratio

PERCENTILES = (50, 95, 99)


def percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """p50, p95, p99 in milliseconds, interpolated between neighbours; None for no values."""
    if not seconds:
        return {f"p{share}": None for share in PERCENTILES}
    values = np.percentile(np.asarray(seconds, np.float64) * 1000.0, PERCENTILES)
    return {f"p{share}": float(value) for share, value in zip(PERCENTILES, values, strict=True)}


def figures(samples: Sequence[Sample], blocks: Mapping[int, float]) -> dict[str, Any]:
    """The figures of one way. blocks: seconds that each of its blocks took, by number."""
    good = [sample for sample in samples if sample.error is None]
    failed = [sample for sample in samples if sample.error is not None]
    seconds = sum(blocks.values())
    tokens = sum(sample.completion_tokens for sample in good)
    pauses = [sample.pause for sample in good if sample.completion_tokens > 1]
    return {
        "tokens_per_s": ratio(tokens, seconds),
        "requests_per_s": ratio(len(good), seconds),
        "ttft_ms": percentiles([sample.ttft for sample in good]),
        "tpot_ms": percentiles([sample.tpot for sample in good if sample.tpot is not None]),
        "e2e_ms": percentiles([sample.e2e for sample in good]),
        "pause_ms": {**percentiles(pauses), "max": max(pauses) * 1000.0 if pauses else None},
        "errors": len(failed),
        **speculation(good),
        "errors_by_kind": dict(Counter(sample.error for sample in failed).most_common()),
        "error_examples": {sample.error: sample.said for sample in reversed(failed)},
        "requests": len(samples),
        "completed": len(good),
        "prompt_tokens": sum(sample.prompt_tokens for sample in good),
        "completion_tokens": tokens,
        "seconds": seconds,
        "tokens_per_s_by_block": [
            ratio(sum(sample.completion_tokens for sample in good if sample.block == number), length)
            for number, length in blocks.items()
        ],
    }


def speculation(good: Sequence[Sample]) -> dict[str, Any]:
    """MAT and the share of draft tokens that were kept, over all requests; None where the server does not tell."""
    told = [sample.speculation for sample in good if sample.speculation is not None]
    steps, accepted = sum(one.steps for one in told), sum(one.accepted for one in told)
    return {
        "mat": ratio(accepted + steps, steps),
        "draft_acceptance_rate": ratio(accepted, sum(one.drafted for one in told)),
    }


def against_plain(own: Sequence[Sample], plain: Sequence[Sample]) -> dict[str, Any]:
    """Share of the requests answered both ways whose text is plain's."""
    texts = {sample.request: sample.digest for sample in plain if sample.error is None}
    pairs = [(sample.digest, texts[sample.request]) for sample in own if sample.error is None and sample.request in texts]
    return {"equal_to_plain": ratio(sum(mine == other for mine, other in pairs), len(pairs))}
