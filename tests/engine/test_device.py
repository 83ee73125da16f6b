"""Device, number format, threads and free memory follow the machine and the container."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from app.engine.errors import ModelLoadError
from app.engine.models.device import choose_device, choose_dtype, choose_threads, free_memory, kv_budget
from app.engine.models.machine import cpu_quota, usable_cpus


def test_auto_settings() -> None:
    device = choose_device("auto")
    assert choose_dtype("auto", device) in (torch.float32, torch.float16, torch.bfloat16)
    assert free_memory(device) > 0


def test_too_few_threads() -> None:
    with pytest.raises(ModelLoadError, match="threads"):
        choose_threads(0)


def test_free_memory_is_the_containers_where_that_is_less(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    group = tmp_path / "sys/fs/cgroup/box"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("5000\n")
    (group / "memory.current").write_text("4000\n")
    (group / "memory.stat").write_text("anon 3500\ninactive_file 500\n")
    assert free_memory(torch.device("cpu"), tmp_path) == 1500
    assert kv_budget(10, torch.device("cpu"), 0.5, tmp_path) == 75
    (group / "memory.max").write_text("max\n")
    assert free_memory(torch.device("cpu"), tmp_path) > 5000


def test_threads_follow_request_environment_and_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        assert choose_threads(1) == torch.get_num_threads() == 1
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        assert choose_threads() == 2
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert choose_threads() == usable_cpus()
    finally:
        torch.set_num_threads(before)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:cpu,cpuacct:/box\n0::/pod/box\n")
    assert cpu_quota(tmp_path) is None
    (tmp_path / "sys/fs/cgroup/pod/box").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/pod/cpu.max").write_text("150000 100000\n")
    (tmp_path / "sys/fs/cgroup/pod/box/cpu.max").write_text("max 100000\n")
    assert cpu_quota(tmp_path) == 1.5
    assert usable_cpus(tmp_path) == 1
    (tmp_path / "sys/fs/cgroup/cpu").mkdir()
    (tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(tmp_path) == 0.5
    assert usable_cpus(tmp_path) == 1
