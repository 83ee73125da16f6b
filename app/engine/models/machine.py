"""The machine: its processor, and the CPUs and memory this process may use. Imports no model library: those take seconds."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

import psutil

ROOT = Path("/")


def processor() -> str:
    """The name the processor gives itself."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or f"{os.cpu_count()} CPUs"


def usable_cpus(root: Path = ROOT) -> int:
    """CPUs this process may use, by affinity and by the quota of its control groups; at least 1."""
    allowed, quota = allowed_cpus(), cpu_quota(root)
    return max(1, min(allowed, math.floor(quota) if quota is not None else allowed))


def allowed_cpus() -> int:
    """CPUs this process may use by affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(root: Path = ROOT) -> float | None:
    """Seconds of CPU time per second, by the strictest control group of this process (versions 1 and 2); None: no limit."""
    quotas = []
    for folder in _control_groups(root, "cpu"):
        words = _read(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
        limit, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if limit.isdigit() and period.isdigit() and int(period):
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def host_memory(root: Path = ROOT) -> int:
    """Bytes of memory that are free: the machine's, or the container's where that is less."""
    free = int(psutil.virtual_memory().available)
    for folder in _control_groups(root, "memory"):
        for limit_name, usage_name in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, usage = _read(folder / limit_name), _read(folder / usage_name)
            if limit.isdigit() and usage.isdigit():
                # Cached file pages count as usage, but the kernel gives them back before memory runs out.
                free = min(free, int(limit) - int(usage) + _cached_file_bytes(folder))
    return max(0, free)


def _cached_file_bytes(folder: Path) -> int:
    fields = dict(line.split(maxsplit=1) for line in _read(folder / "memory.stat").splitlines() if " " in line)
    return int(fields.get("total_inactive_file") or fields.get("inactive_file") or 0)


def _control_groups(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control groups and of all their parents: each may set a limit."""
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        # Inside a container the path may be the host's: then only the base, the container's own group, exists.
        parts = Path(path.lstrip("/")).parts
        folders += [base.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return folders


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
