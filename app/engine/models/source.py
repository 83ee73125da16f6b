"""Where a model's files are: from a known name, a directory, a .gguf file or a hub id to a directory with safetensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from app.engine.errors import ModelLoadError
from app.engine.models.checkpoint import listed, unreadable
from app.engine.models.fetch import KNOWN_MODELS, fetch_default
from app.engine.models.gguf.convert import convert_gguf, file_identity, find_converted
from app.engine.models.hub import fetch_from_hub

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A model's files on disk. name: what clients call it by default. converted: by this program, from GGUF."""

    path: Path
    name: str
    converted: bool = False


def locate(source: str, dtype: torch.dtype, cache: Path, revision: str | None) -> ModelDirectory:
    """The model's directory; what is not there yet is downloaded, and GGUF is converted to dtype. Raises ModelLoadError."""
    if source in KNOWN_MODELS:
        identity = KNOWN_MODELS[source].sha256
        directory = find_converted(identity, dtype, cache)
        directory = directory or convert_gguf(fetch_default(source, cache), identity, dtype, cache)
        return ModelDirectory(directory, source, converted=True)
    if not source:
        raise ModelLoadError("No model is named: give a known name, a directory, a .gguf file or a hub id.")
    path = Path(source).expanduser()
    try:
        is_directory, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise unreadable(path, error) from error
    if is_directory:
        file = _gguf_file_in(path)
        return ModelDirectory(path, path.resolve().name) if file is None else _converted(file, dtype, cache)
    if is_file:
        return _converted(path, dtype, cache)
    if path.suffix == ".gguf" or path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        raise ModelLoadError(f"There is no file or directory {source!r}.")
    return ModelDirectory(fetch_from_hub(source, revision), source)


def _gguf_file_in(directory: Path) -> Path | None:
    """The .gguf file of a directory that holds one model as such a file; None where it is to be read as safetensors."""
    names = listed(directory)
    files = [name for name in names if name.endswith(".gguf")]
    if "config.json" in names or not files:
        return None
    if message := split_model_message(str(directory), files):
        raise ModelLoadError(message)
    if len(files) > 1:
        raise ModelLoadError(f"{directory} holds {len(files)} .gguf files: name the one to load.")
    return directory / files[0]


def _converted(path: Path, dtype: torch.dtype, cache: Path) -> ModelDirectory:
    if path.suffix != ".gguf":
        raise ModelLoadError(f"{path} is not a model: give a .gguf file or a model directory.")
    if message := split_model_message(str(path), [path.name]):
        raise ModelLoadError(message)
    return ModelDirectory(_convert_file(path, dtype, cache), path.stem, converted=True)


def _convert_file(path: Path, dtype: torch.dtype, cache: Path) -> Path:
    try:
        identity = file_identity(path)
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise unreadable(path, error) from error
    if magic != b"GGUF":
        raise ModelLoadError(f"{path} is not a GGUF file: it does not begin with the letters GGUF.")
    return convert_gguf(path, identity, dtype, cache)


def part_of(name: str) -> tuple[str, int, int] | None:
    """Stem, number and count of one part of a split model, by its file name; None for a whole model."""
    found = _PART.fullmatch(name)
    return None if found is None or int(found[3]) < 2 else (found[1], int(found[2]), int(found[3]))


def split_model_message(where: str, names: Sequence[str]) -> str | None:
    """What to tell the user whose files are parts of one split model; None where they are not. where: file or directory."""
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
