"""What other programs take of the processors while something is measured here."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

BUSY = 0.25  # cores: more than this, taken from the threads that are measured, makes steps look dearer than they are
TICKS = 0.1  # seconds: the system counts work in ticks, so the shortest measurement must not find a neighbour in one of them
_WORK = (0, 1, 2, 5, 6, 7)  # user, nice, system, interrupts, soft interrupts, and what other virtual machines took


class Reading(NamedTuple):
    """Seconds so far: by the clock, of work on the processors that this process may use, and of work of its own."""

    clock: float
    busy: float
    own: float


def read_processors(stat: Path = Path("/proc/stat")) -> Reading | None:
    """None where the system does not tell."""
    try:
        names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = [words[1:] for words in map(str.split, stat.read_text().splitlines()) if words and words[0] in names]
        ticks = sum(int(row[column]) for row in rows for column in _WORK)
        return Reading(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time())
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def disturbance(before: Reading | None, after: Reading | None, spare: int) -> float:
    """Cores that other programs used between two readings, where that was too many; else 0.

    spare: processors that this process may use and needs none of.
    """
    if before is None or after is None or after.clock <= before.clock:
        return 0.0
    others = after.busy - before.busy - (after.own - before.own) - TICKS
    cores = others / (after.clock - before.clock)
    return cores if cores > spare + BUSY else 0.0
