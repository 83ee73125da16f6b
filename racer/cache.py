"""Where numba keeps compiled functions when it cannot keep them beside the package: in the user's cache, else in a private
temporary directory, else nowhere."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path


def prepare(package: Path) -> None:
    """Make `@njit(cache=True)` work in any place; call it before the first of them is reached.

    A service often runs as another user than the one who installed it, without a home, on a tree it cannot write to. numba
    then refuses to define a cached function at all.
    """
    if os.environ.get("NUMBA_CACHE_DIR") or _writable(package / "__pycache__"):
        return
    import numba  # noqa: PLC0415 - takes a second, and is seldom needed here

    directory = find_directory(os.environ)
    if directory is not None:
        os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = str(directory)
    else:
        from numba.core.dispatcher import Dispatcher  # noqa: PLC0415

        setattr(Dispatcher, "enable_caching", lambda self: None)  # noqa: B010 - compiled anew in every process


def find_directory(environment: Mapping[str, str]) -> Path | None:
    """The first directory that can be written, made if need be; None if there is none."""
    for base in _user_caches(environment):
        if _writable(base / "numba"):
            return base / "numba"
    return _private_temporary()


def _user_caches(environment: Mapping[str, str]) -> Iterator[Path]:
    """The directories that models are kept in, best first."""
    if chosen := environment.get("RACER_CACHE_DIR"):
        yield Path(os.path.abspath(os.path.expanduser(chosen)))
    if base := environment.get("XDG_CACHE_HOME"):
        yield Path(os.path.abspath(base)) / "racer-csd"
    home = environment.get("HOME", "~")
    if os.path.isabs(home := os.path.expanduser(home)):
        yield Path(home) / ".cache" / "racer-csd"


def _private_temporary() -> Path | None:
    """Ours alone: who could write there could make us run what they wrote, for numba unpickles what it finds."""
    try:
        path = Path(tempfile.gettempdir()) / f"racer-csd-numba-{os.getuid()}"
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except (OSError, AttributeError):  # no user ids: Windows, where installed packages can be written
        return None
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return path if private and _writable(path) else None


def _writable(directory: Path) -> bool:
    """Asks as numba does, by writing: permission bits do not tell of read-only file systems."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False
