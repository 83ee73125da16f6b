"""How much of the processors other programs use while something is measured here."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

BUSY = 0.25  # cores: if other programs take more than this from the measured threads, steps look slower than they are
TICKS = 0.1  # seconds, subtracted: the system counts work in ticks, and a single tick must not look like another program
NAMED = 3  # programs
NOTICED = 0.05  # cores
_WORK = (0, 1, 2, 5, 6, 7)  # user, nice, system, interrupts, soft interrupts, and what other virtual machines took


class CpuUsage(NamedTuple):
    """Seconds so far: by the clock, of all work on the processors this process may use, and of its own work."""

    clock: float
    busy: float
    own: float


def read_processors(stat: Path = Path("/proc/stat")) -> CpuUsage | None:
    """None where the system does not provide it."""
    try:
        names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = [words[1:] for words in map(str.split, stat.read_text().splitlines()) if words and words[0] in names]
        ticks = sum(int(row[column]) for row in rows for column in _WORK)
        return CpuUsage(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time())
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def disturbance(before: CpuUsage | None, after: CpuUsage | None, spare: int) -> float:
    """Cores that other programs used between two readings, where that is too many; else 0.

    spare: processors that this process may use and does not need.
    """
    if before is None or after is None or after.clock <= before.clock:
        return 0.0
    others = after.busy - before.busy - (after.own - before.own) - TICKS
    cores = others / (after.clock - before.clock)
    return cores if cores > spare + BUSY else 0.0


def read_programs(proc: Path = Path("/proc")) -> dict[int, tuple[str, float]]:
    """Name and seconds of work so far of each other process that may be seen; empty where the system does not provide it."""
    found: dict[int, tuple[str, float]] = {}
    for directory in proc.glob("[0-9]*"):
        try:
            before, _, rest = (directory / "stat").read_text().rpartition(")")  # a name may hold spaces and brackets
            user, system = rest.split()[11:13]
            found[int(directory.name)] = before.partition("(")[2], (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, AttributeError):
            continue
    found.pop(os.getpid(), None)
    return found


def busiest(
    before: Mapping[int, tuple[str, float]], after: Mapping[int, tuple[str, float]], seconds: float
) -> dict[str, float]:
    """Cores that other programs used between two readings, by name, the busiest first; at most NAMED, none below NOTICED."""
    cores: dict[str, float] = {}
    for number, (name, worked) in after.items():
        known, earlier = before.get(number, (name, 0.0))
        cores[name] = cores.get(name, 0.0) + (worked - (earlier if known == name else 0.0)) / max(seconds, TICKS)
    ranked = sorted(cores.items(), key=lambda entry: -entry[1])
    return {name: used for name, used in ranked[:NAMED] if used >= NOTICED}


class Watch:
    """Other programs' use of the processors from now on."""

    def __init__(self, spare: int) -> None:
        """spare: as for `disturbance`."""
        self._spare = spare
        self._started, self._programs, self._processors = time.monotonic(), read_programs(), read_processors()

    def disturbance(self) -> float:
        """Cores that they have used so far, where that is too many; else 0."""
        return disturbance(self._processors, read_processors(), self._spare)

    def busiest(self) -> dict[str, float]:
        """Cores by name, the busiest first."""
        return busiest(self._programs, read_programs(), time.monotonic() - self._started)
