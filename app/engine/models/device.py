"""Where the model runs: device, number format, threads, and the free memory there."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from app.engine.errors import ModelLoadError
from app.engine.models.dtypes import full_name
from app.engine.models.machine import ROOT, host_memory, usable_cpus

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


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
    """The number format for the setting `dtype`; auto is the shortest one that is fast on the device. Raises ModelLoadError."""
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

    Without `requested` or OMP_NUM_THREADS, as many as the CPUs that the process may use, by affinity and by its quota of CPU
    time. With more threads, some are off the CPU while the others wait for them, which costs far more than it gains.
    """
    if requested is None:
        requested = _threads_from_environment()
    if requested is not None and requested < 1:
        raise ModelLoadError(f"threads: {requested} is too few; at least one is needed.")
    threads = requested or usable_cpus()
    torch.set_num_threads(threads)
    return threads


def free_memory(device: torch.device, root: Path = ROOT) -> int:
    """Bytes that are free on the device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return host_memory(root)


def empty_cache(device: torch.device) -> None:
    """Free the accelerator memory that torch keeps in reserve."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def kv_budget(bytes_per_token: int, device: torch.device, fraction: float, root: Path = ROOT) -> int:
    """Tokens whose KV fits in this fraction of the memory that is free now."""
    return int(free_memory(device, root) * fraction) // max(1, bytes_per_token)


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
