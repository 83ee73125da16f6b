"""When other programs are in the way of a measurement."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.engine.cost.neighbours import CpuUsage, busiest, disturbance, read_processors, read_programs

BEFORE = CpuUsage(50.0, 1000.0, 30.0)


@pytest.mark.parametrize(
    ("seconds", "busy", "own", "spare", "cores"),
    [
        (10.0, 20.0, 20.0, 0, 0.0),  # all work is its own
        (10.0, 22.0, 20.0, 0, 0.0),  # a fifth of a core
        (10.0, 23.1, 20.0, 0, 0.3),
        (10.0, 30.1, 20.0, 0, 1.0),
        (10.0, 30.1, 20.0, 1, 0.0),  # on a processor that nobody missed
        (10.0, 33.1, 20.0, 1, 1.3),
        (0.05, 0.1, 0.05, 0, 0.0),  # ticks
        (10.0, 0.0, 20.0, 0, 0.0),  # a system that counts nothing
        (0.0, 0.0, 0.0, 0, 0.0),
    ],
)
def test_what_others_took_from_the_measured_threads(seconds: float, busy: float, own: float, spare: int, cores: float) -> None:
    after = CpuUsage(BEFORE.clock + seconds, BEFORE.busy + busy, BEFORE.own + own)
    assert disturbance(BEFORE, after, spare) == pytest.approx(cores)


def test_a_system_that_does_not_tell_disturbs_nothing(tmp_path: Path) -> None:
    assert read_processors(tmp_path / "stat") is None
    (tmp_path / "stat").write_text(f"cpu{min(os.sched_getaffinity(0))} 1 2\n")
    assert read_processors(tmp_path / "stat") is None
    assert disturbance(None, BEFORE, 0) == disturbance(BEFORE, None, 0) == 0.0


def test_work_on_the_processors_of_this_process_counts(tmp_path: Path) -> None:
    """Idle time, waiting for disks, and guests, whose time is in that of the user already, are no work."""
    own = sorted(os.sched_getaffinity(0))
    rows = [f"cpu{number} 100 10 20 5000 700 3 4 60 50 5" for number in (*own, max(own) + 1)]
    (tmp_path / "stat").write_text("\n".join(["cpu 900 90 180 45000 6300 27 36 540 450 45", *rows, "ctxt 123", ""]))
    reading = read_processors(tmp_path / "stat")
    assert reading is not None
    assert reading.busy == pytest.approx(len(own) * 197 / os.sysconf("SC_CLK_TCK"))
    assert reading.own > 0


def test_programs_are_read_by_name_and_work(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    for number, name, user, system in ((7, "make", 2, 1), (8, "a (b) c", 5, 0), (os.getpid(), "pytest", 90, 9)):
        (tmp_path / str(number)).mkdir()
        fields = [str(number), f"({name})", "R", *["0"] * 10, str(user * ticks), str(system * ticks), "0", "0"]
        (tmp_path / str(number) / "stat").write_text(" ".join(fields))
    (tmp_path / "9").mkdir()  # one that ended
    (tmp_path / "uptime").write_text("1 2")
    assert read_programs(tmp_path) == {7: ("make", 3.0), 8: ("a (b) c", 5.0)}
    assert read_programs(tmp_path / "none") == {}


def test_the_busiest_programs_are_named() -> None:
    before = {1: ("init", 50.0), 2: ("cc", 3.0), 3: ("old", 9.0), 4: ("sh", 1.0)}
    after = {1: ("init", 50.1), 2: ("cc", 7.0), 3: ("new", 4.0), 4: ("sh", 2.0), 5: ("cc", 6.0), 6: ("tail", 1.1)}
    assert busiest(before, after, 10.0) == {"cc": 1.0, "new": 0.4, "tail": pytest.approx(0.11)}
    assert busiest(before, before, 10.0) == {}
