"""The machine a figure was measured on, without the model libraries: they take seconds to import."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import sys
from collections.abc import Iterable
from datetime import UTC, datetime

SECRET_FLAGS = ("--api-key", "--api_key")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    return {"python": platform.python_version(), **{name: _version(name) for name in packages}}


def command() -> str:
    """The command line of this process; keys are not shown."""
    shown: list[str] = []
    for word in sys.argv[1:]:
        secret = next((flag for flag in SECRET_FLAGS if word.startswith(f"{flag}=")), None)
        if shown and shown[-1] in SECRET_FLAGS:
            shown.append("KEY")
        else:
            shown.append(word if secret is None else f"{secret}=KEY")
    return shlex.join(["racer-csd", *shown])


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
