"""Peak memory of a stretch of work: of the GPU where the model is there, else resident memory of the process."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


class PeakMemory:
    """Call `start`, work, read `peak`. Where the system cannot reset its mark, peak is that of the whole process so far."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def start(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        with suppress(OSError):
            _CLEAR.write_text("5")  # Linux: set the high-water mark of resident memory to what is resident now

    def peak(self) -> int:
        """Bytes."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        with suppress(OSError, ValueError):
            for line in _STATUS.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
