"""Converts a GGUF file once, into a safetensors directory that loads fast."""

from __future__ import annotations

import gc
import hashlib
import io
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import gguf
import torch
import transformers
from transformers import AutoModelForCausalLM

from app.engine.errors import ModelLoadError
from app.engine.models.cache import alone_in, cache_error, damage, discard, publish, scratch_directory, write_manifest
from app.engine.models.device import dtype_name, free_memory
from app.engine.models.gguf.reading import read_once
from app.engine.models.gguf.rope import RopeScaling, apply_scaling, read_scaling
from app.engine.models.gguf.tokenizer import GgufVocabulary, read_tokenizer

logger = logging.getLogger(__name__)

_FORMAT = 2  # counted up when the same file would convert to something else
_Read = TypeVar("_Read")
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class _Facts:
    elements: int  # numbers in all tensors
    vocabulary: GgufVocabulary
    end_ids: frozenset[int]  # end of text, of turn, of message
    rope: RopeScaling


def file_identity(path: Path) -> str:
    """A key that changes when the file changes, from path, size and time. Raises OSError."""
    stat = path.stat()
    return hashlib.sha256(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()


def find_converted(identity: str, dtype: torch.dtype, cache: Path) -> Path | None:
    """An undamaged earlier conversion with the weights that a new one would have: in this dtype, or in float32."""
    for stored in (dtype, torch.float32):
        directory = _place(identity, stored, cache)
        if _exists(directory) and damage(directory) is None:
            return directory
    return None


def convert_gguf(path: Path, identity: str, dtype: torch.dtype, cache: Path) -> Path:
    """The directory of the converted model, which is converted unless that is done. Raises ModelLoadError.

    Weights are stored in the dtype they run in: a shorter one would lose precision, and float32 would double the disk space of
    a model that runs in bfloat16. Of several processes one converts, and the others wait for it.
    """
    found = find_converted(identity, dtype, cache)
    if found is not None:
        return found
    target = _place(identity, dtype, cache)
    with alone_in(target.parent):
        found = find_converted(identity, dtype, cache)  # by another process meanwhile
        if found is not None:
            return found
        if _exists(target):
            logger.warning("%s is damaged (%s): converting again", target, damage(target))
            discard(target)
        _convert(path, dtype, target)
    return target


def _exists(directory: Path) -> bool:
    try:
        directory.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise cache_error(directory, error) from error
    return True


def _convert(path: Path, dtype: torch.dtype, target: Path) -> None:
    with read_once(path):
        _convert_whole(path, dtype, target)
    gc.collect()  # else this model would stay in memory beside the one that is loaded next
    if damage(target) is not None:
        raise ModelLoadError(
            f"{target} is damaged and cannot be replaced: remove it, or set RACER_CACHE_DIR to another directory."
        )


def _convert_whole(path: Path, dtype: torch.dtype, target: Path) -> None:
    facts = _read_facts(path)
    needed = facts.elements * (dtype.itemsize + 4)  # the model, and what is being dequantised
    if needed > free_memory(_CPU):
        raise ModelLoadError(
            f"No memory to convert {path.name}: it needs about {needed} bytes and {free_memory(_CPU)} are free. "
            "Use a smaller model, or its safetensors version."
        )
    logger.info("Converting %s to safetensors (%s), once: this takes some seconds per 100 MB", path.name, dtype_name(dtype))
    with scratch_directory(target.parent) as scratch:
        prepared = scratch / target.name
        prepared.mkdir()
        _guarded(path, lambda: read_tokenizer(path, facts.vocabulary)).save_pretrained(prepared)
        _save_model(path, facts, dtype, prepared)
        write_manifest(prepared)
        publish(prepared, target)


def _place(identity: str, dtype: torch.dtype, cache: Path) -> Path:
    return cache / "converted" / f"{identity[:32]}-{_FORMAT}-{dtype_name(dtype)}"


def _read_facts(path: Path) -> _Facts:
    return _guarded(path, lambda: _facts_of(gguf.GGUFReader(path)))


def _facts_of(reader: gguf.GGUFReader) -> _Facts:
    def content(key: str) -> Any:
        field = reader.get_field(key)
        return None if field is None else field.contents()

    if int(content("split.count") or 1) > 1:  # whatever the file is called
        raise ModelLoadError(
            f"The file is part {int(content('split.no') or 0) + 1} of {content('split.count')} of a split GGUF "
            "model, which is not read: join the parts with `llama-gguf-split --merge`."
        )
    ends = (content(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return _Facts(
        elements=sum(int(tensor.n_elements) for tensor in reader.tensors),
        vocabulary=GgufVocabulary(
            model=content("tokenizer.ggml.model"),
            pre_tokenizer=content("tokenizer.ggml.pre"),
            tokens=content("tokenizer.ggml.tokens"),
            types=content("tokenizer.ggml.token_type") or [],
        ),
        end_ids=frozenset(int(end) for end in ends if end is not None),
        rope=read_scaling(reader, content),
    )


def _save_model(path: Path, facts: _Facts, dtype: torch.dtype, directory: Path) -> None:
    options: dict[str, Any] = {}
    if config_class := getattr(transformers, "GgufConfig", None):
        options["quantization_config"] = config_class(dequantize=True)  # never packed weights: they cannot be saved
    model, report = _guarded(
        path,
        lambda: AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=dtype, output_loading_info=True, **options
        ),
    )
    if report["missing_keys"]:
        raise ModelLoadError(f"{path.name} lacks weights, {sorted(report['missing_keys'])[0]} for one.")
    # An ordinary model from here on: marked as GGUF it could not be saved, or loaded again.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    apply_scaling(model.config, facts.rope, path.name)
    model.config.architectures = [type(model).__name__]
    ends = facts.end_ids | _as_ids(model.generation_config.eos_token_id)
    if ends:
        model.generation_config.eos_token_id = sorted(ends)
    with _quiet():
        model.save_pretrained(directory)


def _as_ids(value: int | list[int] | None) -> set[int]:
    return set() if value is None else {value} if isinstance(value, int) else set(value)


def _quiet() -> AbstractContextManager[Any]:
    """Hide progress bars where stderr is no terminal: in a log they are one endless line."""
    return nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO())


def _guarded(path: Path, read: Callable[[], _Read]) -> _Read:
    """What `read` returns. A damaged file can raise nearly any exception: each becomes the same ModelLoadError."""
    try:
        with _quiet():
            return read()
    except ModelLoadError:
        raise
    except MemoryError as error:
        raise ModelLoadError(f"No memory to convert {path.name}.") from error
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise ModelLoadError(
            f"{path} cannot be loaded: it is damaged, cut short, or of a kind that is not supported "
            f"({type(error).__name__}: {reason})."
        ) from error
