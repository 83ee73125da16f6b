"""Parts of a GGUF model that was split: each is named as one, since it is no model by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def part_of(name: str) -> tuple[str, int, int] | None:
    """Stem, number and count of a part, by its file name; None for a whole model."""
    found = _PART.fullmatch(name)
    return None if found is None or int(found[3]) < 2 else (found[1], int(found[2]), int(found[3]))


def refusal(where: str, names: Sequence[str]) -> str | None:
    """What to say of files that are parts of one model; None where they are not. where: path of the file or directory."""
    parts = [part_of(name) for name in names]
    if not parts or any(part is None for part in parts) or len({(part[0], part[2]) for part in parts if part}) > 1:
        return None
    stem, number, count = next(part for part in parts if part)
    what = f"part {number} of {count}" if len(names) == 1 else f"{len(names)} of {count} parts"
    first = f"{stem}-00001-of-{count:05d}.gguf"
    return (
        f"{where} is {what} of a split GGUF model, which is not read. Join the parts with "
        f"`llama-gguf-split --merge {first} {stem}.gguf`, and name the file that comes of it."
    )
