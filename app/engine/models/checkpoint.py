"""Checks a model's directory before it is loaded: whether it is complete and safe to load, and how big it is."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.engine.errors import ModelLoadError

_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_HEADER_LIMIT = 100_000_000  # bytes; the format's own limit
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the headers of a directory's safetensors files say."""

    config: dict[str, Any]  # config.json
    float_elements: int  # numbers that are converted to the dtype the model runs in
    other_bytes: int  # everything else, kept as it is

    def bytes_in(self, itemsize: int) -> int:
        """Bytes of the weights, with floats of `itemsize` bytes."""
        return self.float_elements * itemsize + self.other_bytes


def read_checkpoint(directory: Path) -> Checkpoint:
    """Check a model directory without loading it. Raises ModelLoadError that says what is wrong with it."""
    config = _read_config(directory)
    float_elements = other_bytes = 0
    for path in weight_files(directory):
        for entry in _read_header(path).values():
            elements = math.prod(entry["shape"])
            if entry["dtype"] in _FLOATS:
                float_elements += elements
            else:
                other_bytes += elements * _BYTES.get(entry["dtype"], 1)
    return Checkpoint(config, float_elements, other_bytes)


def listed(directory: Path) -> list[str]:
    """Sorted names of a directory. Raises ModelLoadError where it cannot be read."""
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        raise unreadable(directory, error) from error


def unreadable(path: Path, error: OSError) -> ModelLoadError:
    who = f" by uid {os.getuid()}" if hasattr(os, "getuid") else ""
    return ModelLoadError(f"{path} cannot be read{who}: {error.strerror or type(error).__name__}.")


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    if "config.json" not in listed(directory):
        raise ModelLoadError(f"{directory} is not a model: it has no config.json.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelLoadError(f"{directory} is not a model: its config.json names no model_type.")
    return config


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a model. Raises ModelLoadError where there are none."""
    names = listed(directory)
    if "model.safetensors" in names:
        return [directory / "model.safetensors"]
    index = directory / "model.safetensors.index.json"
    if index.name in names:
        try:
            parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except OSError as error:
            raise unreadable(index, error) from error
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelLoadError(f"{index} is not a safetensors index.") from error
        absent = [part for part in parts if part not in names]
        if absent:
            raise ModelLoadError(f"{directory} is incomplete: {absent[0]} and {len(absent) - 1} more weight files are missing.")
        return [directory / part for part in parts]
    pickled = [name for name in names if name.endswith(_PICKLED)]
    if pickled:
        raise ModelLoadError(
            f"{directory} holds its weights only as pickled files ({pickled[0]}), which can run code and are not loaded. "
            "Convert them to safetensors first."
        )
    raise ModelLoadError(f"{directory} holds no weights: there is no model.safetensors or model.safetensors.index.json.")


def _read_header(path: Path) -> dict[str, dict[str, Any]]:
    """Tensor name -> dtype, shape and offsets. Raises ModelLoadError where the file is shorter than they say."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = path.stat().st_size
            if not 2 <= length <= min(_HEADER_LIMIT, size - 8):
                raise ModelLoadError(f"{path} is not a safetensors file, or its beginning is damaged.")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        expected = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{path} is not a safetensors file, or its beginning is damaged.") from error
    if size < expected:
        raise ModelLoadError(f"{path} is cut short: it has {size} bytes of {expected}. Copy or download it again.")
    return dict(header)
