"""The environment of a run: machine, versions, model and command, so that a figure can be repeated."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from app.engine.device import usable_cpus
from app.engine.interface import ModelInfo

PACKAGES = ("racer-csd", "torch", "transformers", "tokenizers", "numpy", "numba")


def machine() -> dict[str, Any]:
    """Date, processor, threads, versions and command."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": processor(),
        "cpus": usable_cpus(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "platform": platform.platform(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "command": shlex.join(["racer-csd", *sys.argv[1:]]),
    }


def model(info: ModelInfo) -> dict[str, Any]:
    """What was measured."""
    return {
        "model": info.name,
        "architecture": info.architecture,
        "params": info.parameters,
        "dtype": info.dtype,
        "device": info.device,
        "threads": info.threads,
        "vocab_size": info.vocab_size,
        "max_context": info.max_context,
        "tree_attention": info.tree_attention,
    }


def processor() -> str:
    """The name the processor gives itself."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or f"{os.cpu_count()} CPUs"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
