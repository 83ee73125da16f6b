"""The kernel report runs and holds what it should; its timings are no test."""

from __future__ import annotations

import numpy as np
import pytest

from bench.kernels import TEXTS, as_table, measure_kernels, text


def test_the_report_has_every_policy_text_and_context() -> None:
    report = measure_kernels(contexts=(256, 512), rounds=10, prompt=512, vocabulary=5000)
    places = {(row["policy"], row["text"], row["context"]) for row in report["steps"]}
    assert places == {(policy, kind, size) for policy in ("paper", "auto") for kind in TEXTS for size in (256, 512)}
    for row in report["steps"]:
        for call in ("observe", "propose", "learn"):
            assert 0 < row[call]["median"] <= row[call]["p99"]
        assert row["nodes"] > 32
    assert all(row["ms"] > 0 for row in report["prompts"])
    assert all(row["bytes"] > 5000 for row in report["state"])
    assert set(report["rescue"]) == {"lookup", "gate", "exact walk", "csd walk"} and min(report["rescue"].values()) > 0
    table = as_table(report)
    assert "| csd walk |" in table
    assert table.count("| auto |") == 6 + 3 + 1
    assert "| draft, median, µs | draft, p99, µs | learn 64 rows, median, µs |" in table


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_are_the_same_each_time_and_of_the_kind(kind: str) -> None:
    made = text(kind, 5000, 1000)
    assert np.array_equal(made, text(kind, 5000, 1000))
    assert made.size == 5000 and made.min() >= 0 and made.max() < 1000
    period = {"repetitive": 1, "periodic": 97}.get(kind)
    if period is not None:
        assert np.array_equal(made[period:], made[:-period])
