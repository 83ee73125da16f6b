"""Freed memory goes back to the system, but not at every step."""

from __future__ import annotations

import sys

import numpy as np
import psutil
import pytest

from app.engine.request import GenerationRequest, SamplingParams, StopParams
from app.engine.scheduler.heap import HeapTrim, c_library_trim
from tests.engine.drafting import FLAT
from tests.tiny import tiny_engine

MEGABYTE = 1 << 20


def test_it_trims_after_sessions_ended_and_not_too_often() -> None:
    now = [0.0]
    trims: list[float] = []
    heap = HeapTrim(lambda: trims.append(now[0]), every=10.0, clock=lambda: now[0])
    for second in range(60):
        now[0] = float(second)
        if second in (3, 4, 12, 50):
            heap.session_ended()
        heap.trim_if_due()
    assert trims == [10.0, 20.0, 50.0]


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can")
def test_holes_between_blocks_that_stay_are_given_back() -> None:
    blocks = [np.ones(64 * 1024, np.uint8) for _ in range(100 * 16)]
    stay = blocks[::40]
    del blocks
    before = psutil.Process().memory_info().rss
    c_library_trim()()
    assert before - psutil.Process().memory_info().rss > 50 * MEGABYTE
    assert all(block[-1] == 1 for block in stay)


def test_the_worker_trims_when_a_session_ended() -> None:
    with tiny_engine(cost_curve=FLAT) as engine:
        trims: list[bool] = []
        engine._scheduler.pool.heap = HeapTrim(lambda: trims.append(True), every=0.0)
        request = GenerationRequest((5, 6, 7), SamplingParams(temperature=0.0), StopParams(max_tokens=5))
        for done in range(3):
            engine.generate(request)
            engine.generate(request)  # the round before it has trimmed
            assert len(trims) >= 2 * done + 1
