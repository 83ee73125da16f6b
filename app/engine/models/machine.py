"""The machine this runs on, told without the model libraries: they take seconds to import."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def processor() -> str:
    """The name the processor gives itself."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or f"{os.cpu_count()} CPUs"
