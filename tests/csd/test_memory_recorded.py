"""What the memory has counted since its start, for those who compare it with a store."""

from __future__ import annotations

from csd.memory import CorrectionMemory


def test_what_was_recorded_is_counted_for_good():
    memory = CorrectionMemory(max_entries=2)
    for draft in range(5):
        memory.record(draft, 9, times=2)
    memory.drain()
    memory.replace([(1, 2, 50.0)])
    memory.merge([(1, 2, 50.0)])
    memory.clear()
    assert memory.recorded == 10
