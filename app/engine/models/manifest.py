"""The list of a directory's files by size and checksum, by which damage to it shows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from app.engine.models.cache import cache_error

NAME = "manifest.json"
_SMALL = 1 << 26  # bytes: larger files are weights, whose sizes must do, since reading them twice would slow every start
_BLOCK = 1 << 20  # bytes read at once


def sha256_of(path: Path) -> str:
    """The checksum of a file, as hex digits. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_manifest(directory: Path) -> None:
    """List what lies in a directory now. Raises OSError."""
    files = {path.name: _facts(path) for path in sorted(directory.iterdir())}
    (directory / NAME).write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")


def damage(directory: Path) -> str | None:
    """What is wrong with a directory that has a manifest; None: nothing. Raises ModelLoadError where it may not be read."""
    if not directory.is_dir():
        return "it is no directory"
    try:
        listed = json.loads((directory / NAME).read_text(encoding="utf-8"))["files"]
        for name, facts in listed.items():
            if _facts(directory / name) != facts:
                return f"{name} is not as it was written"
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        return f"{Path(str(error.filename)).name} is missing"
    except OSError as error:
        raise cache_error(directory, error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{NAME} cannot be read"
    return None


def _facts(path: Path) -> list[int | str | None]:
    size = path.stat().st_size
    return [size, sha256_of(path) if size <= _SMALL else None]
