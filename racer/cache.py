"""Where numba keeps compiled functions when it cannot keep them beside the package: in the user's cache, else in a private
temporary directory, else nowhere."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numba
from numba.core.caching import Cache, IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

logger = logging.getLogger(__name__)

USERS = ("racer", "csd", "app")  # packages whose compiled functions call those of this one


def prepare(package: Path) -> None:
    """Make `@njit(cache=True)` work in any place; call it before the first of them is reached.

    A service often runs as another user than the one who installed it, without a home, on a tree it cannot write to. numba
    then refuses to define a cached function at all.
    """
    _tolerate_damage()
    _notice_changes(package)
    if os.environ.get("NUMBA_CACHE_DIR") or _writable(package / "__pycache__"):
        return
    directory = find_directory(os.environ)
    if directory is not None:
        os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = str(directory)
    else:
        setattr(Dispatcher, "enable_caching", lambda self: None)  # noqa: B010 - compiled anew in every process


def _tolerate_damage() -> None:
    """A damaged file of a compiled function means compiling it again, and one that cannot be written is done without.

    numba writes them without waiting for the disk, so a power cut can leave empty ones, and each start would end there.
    """
    _guard("_load_index", dict, "compiling again")
    _guard("load", lambda: None, "compiling again")
    _guard("save", lambda: None, "the next start compiles again")


def _notice_changes(package: Path) -> None:
    """Compile again after a change to any file of the package.

    numba looks at the file of the function alone. The functions it calls are compiled into it, so after an upgrade in place
    half of the code would be the old one and index the arrays of the new one.
    """
    digest = hashlib.sha256()
    for path in sorted(package.glob("*.py")):
        digest.update(path.read_bytes())
    stamp = digest.hexdigest()
    original = Cache.__init__
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def stamped(self: Cache, function: Callable[..., object]) -> None:
        original(self, function)
        if function.__module__.partition(".")[0] in USERS:
            kept = self._cache_file
            kept._source_stamp = (kept._source_stamp, stamp)

    setattr(Cache, "__init__", stamped)  # noqa: B010 - a library's method


def _guard(name: str, instead: Callable[[], object], consequence: str) -> None:
    original = getattr(IndexDataCacheFile, name, None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def guarded(self: IndexDataCacheFile, *arguments: object) -> object:
        try:
            return original(self, *arguments)
        except Exception as error:  # what a damaged pickle raises has no bounds
            logger.warning("%s cannot be used (%s): %s", self._index_path, type(error).__name__, consequence)
            return instead()

    setattr(IndexDataCacheFile, name, guarded)


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
