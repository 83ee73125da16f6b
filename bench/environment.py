"""The environment of a run: machine, versions, model and command, so that a figure can be repeated."""

from __future__ import annotations

import platform
from typing import Any

import torch

from app.engine.interface import ModelInfo
from app.engine.models.machine import processor, usable_cpus
from bench import host

PACKAGES = ("racer-csd", "torch", "transformers", "tokenizers", "numpy", "numba")


def machine() -> dict[str, Any]:
    """Date, processor, threads, versions and command."""
    return {
        "date": host.now(),
        "cpu": processor(),
        "cpus": usable_cpus(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "platform": platform.platform(),
        "versions": host.versions(PACKAGES),
        "command": host.command(),
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
