"""Label values and histogram buckets."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

POSITIONS = (*(str(position) for position in range(16)), "16+")
FINISHED_REASONS = ("stop", "length", "cancelled", "error", "invalid")
UNREAD_CAUSES = ("bytes", "time")
TEXT_LANES = ("short", "generate", "convert", "reply")
STATUS_CLASSES = ("2xx", "3xx", "4xx", "5xx")
OTHER_ROUTE = "other"
ROW_LAYERS = ("session", "warm", "prior")

# A large GPU takes half a millisecond per token, a laptop seconds, and minutes for a long prompt.
TTFT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKEN_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0)
E2E_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
ACCEPTED_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24)
MEAN_BUCKETS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0)
BUDGET_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
LENGTH_BUCKETS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def package_version(package: str = "racer-csd") -> str:
    """The installed version; "0" where the package is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "0"


def build() -> dict[str, str]:
    """The versions of this process: labels of racer_build_info."""
    libraries = {name: package_version(name) for name in ("torch", "transformers")}
    return {"version": package_version(), "python": platform.python_version(), **libraries}
