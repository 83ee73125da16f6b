"""Where the model runs: device, number format, threads, and the memory that is free there."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil
import torch

from app.engine.errors import ModelLoadError
from app.engine.models.dtypes import full_name

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_ROOT = Path("/")


def choose_device(device: str = "auto") -> torch.device:
    """The torch device for the setting `device`; auto takes a GPU where there is one. Raises ModelLoadError."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ModelLoadError(f"device: {device!r} is no device; use auto, cpu, cuda, cuda:<number> or mps.") from error
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise ModelLoadError("device: cuda was asked for, but torch finds no usable GPU here; use auto or cpu.")
        index = torch.cuda.current_device() if chosen.index is None else chosen.index
        if index >= torch.cuda.device_count():
            raise ModelLoadError(f"device: there is no cuda:{index}; this machine has {torch.cuda.device_count()} GPUs.")
        return torch.device("cuda", index)
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise ModelLoadError("device: mps was asked for, but it is not available here; use auto or cpu.")
    if chosen.type not in ("cpu", "mps"):
        raise ModelLoadError(f"device: {device!r} is not supported; use auto, cpu, cuda, cuda:<number> or mps.")
    return chosen


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The number format for the setting `dtype`; auto is the shortest one the device is fast at. Raises ModelLoadError."""
    try:
        name = full_name(dtype)
    except ValueError as error:
        raise ModelLoadError(f"dtype: {dtype!r} is unknown; it {error}.") from error
    if name == "auto":
        if device.type == "cuda":
            return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float16
        if device.type == "mps":
            return torch.float16
        return torch.bfloat16 if _cpu_multiplies_bf16() else torch.float32
    return _DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    """'float32' for torch.float32."""
    return str(dtype).removeprefix("torch.")


def choose_threads(requested: int | None = None) -> int:
    """Set torch's threads and return their number. Raises ModelLoadError.

    Unless told (or OMP_NUM_THREADS says so), as many as the process may really use: the CPUs it is allowed on, and no more
    than its share of CPU time. More threads than that wait for each other while they are off the CPU, which costs far more
    than it brings.
    """
    if requested is None:
        requested = _threads_from_environment()
    if requested is not None and requested < 1:
        raise ModelLoadError(f"threads: {requested} is too few; at least one is needed.")
    threads = requested or usable_cpus()
    torch.set_num_threads(threads)
    return threads


def usable_cpus(root: Path = _ROOT) -> int:
    """CPUs of this process by affinity and by the quota of its control groups; at least 1."""
    allowed, quota = allowed_cpus(), cpu_quota(root)
    return max(1, min(allowed, math.floor(quota) if quota is not None else allowed))


def allowed_cpus() -> int:
    """CPUs of this process by affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(root: Path = _ROOT) -> float | None:
    """CPUs' worth of time per second, by the tightest control group above this process (versions 1 and 2); None: no limit."""
    quotas = []
    for folder in _control_groups(root, "cpu"):
        words = _read(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
        limit, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if limit.isdigit() and period.isdigit() and int(period):
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def free_memory(device: torch.device, root: Path = _ROOT) -> int:
    """Bytes a model can still take on the device: of the machine, and of the container where that is less."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    for folder in _control_groups(root, "memory"):
        for limit_name, usage_name in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, usage = _read(folder / limit_name), _read(folder / usage_name)
            if limit.isdigit() and usage.isdigit():
                # Cached file pages count as usage, but the kernel gives them back before it runs out.
                free = min(free, int(limit) - int(usage) + _cached_file_bytes(folder))
    return max(0, free)


def empty_cache(device: torch.device) -> None:
    """Let an accelerator have back what torch keeps of it and does not use."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def kv_budget(bytes_per_token: int, device: torch.device, fraction: float, root: Path = _ROOT) -> int:
    """Tokens whose KV fits in this fraction of the memory that is free now, the container's where that is less."""
    return int(free_memory(device, root) * fraction) // max(1, bytes_per_token)


def _cached_file_bytes(folder: Path) -> int:
    fields = dict(line.split(maxsplit=1) for line in _read(folder / "memory.stat").splitlines() if " " in line)
    return int(fields.get("total_inactive_file") or fields.get("inactive_file") or 0)


def _control_groups(root: Path, controller: str) -> list[Path]:
    """Folders of the control groups this process is in, with all their parents: each may set a limit."""
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


def _threads_from_environment() -> int | None:
    value = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(value) if value.isdigit() and int(value) > 0 else None


def _cpu_multiplies_bf16() -> bool:
    # AVX-512 BF16 and AMX: without them torch widens to float32 and is slower in bfloat16 than in float32.
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        probe = getattr(torch.cpu, name, None)
        if probe is not None and probe():
            return True
    return False
