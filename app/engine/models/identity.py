"""The fingerprint of the models that a correction table belongs to: from loaded models, or from their files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from app.engine.models.checkpoint import weight_files
from app.engine.models.device import choose_device, choose_dtype
from app.engine.models.loading import LoadedModel, ModelFiles, find_model, load_model
from csd.fingerprint import fingerprint

SAMPLED = 8  # values of each parameter, to tell models apart
RACER_SOURCE = "racer"  # the draft source without a draft model


def table_fingerprint(target: LoadedModel, draft: LoadedModel | None) -> str:
    """The fingerprint of the table for this target and draft source."""
    source = RACER_SOURCE if draft is None else model_identity(draft)
    return fingerprint(model_identity(target), source, target.codec.tokenizer.get_vocab())


def table_of(target: str, draft: str | None, dtype: str = "auto") -> str:
    """The same fingerprint for anything load_model takes, without loading the weights if possible. Raises ModelLoadError."""
    files = find_model(target, dtype=dtype)
    source = RACER_SOURCE if draft is None else _identity(find_model(draft, dtype=dtype), draft, dtype)
    return fingerprint(_identity(files, target, dtype), source, files.tokenizer.get_vocab())


def model_identity(loaded: LoadedModel) -> str:
    """A hash of class, shapes and first values of each parameter, rounded to bfloat16 so that the dtype makes no difference."""
    samples = ((parameter.shape, parameter.detach().flatten()[:SAMPLED]) for parameter in loaded.model.parameters())
    return _digest(type(loaded.model).__name__, samples)


def _identity(files: ModelFiles, source: str, dtype: str) -> str:
    return _stored_identity(files, dtype) or model_identity(load_model(source, dtype=dtype))


def _stored_identity(files: ModelFiles, dtype: str) -> str | None:
    """model_identity of the files; None where their tensors are not the model's parameters one by one, or where loading would
    round twice."""
    if choose_dtype(dtype, choose_device()) == torch.float16:
        return None
    stored = _first_values(files.directory)
    if stored is None:
        return None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(files.config, trust_remote_code=False)
    parameters = dict(model.named_parameters())
    if stored.keys() != parameters.keys() or any(stored[name][0] != one.shape for name, one in parameters.items()):
        return None
    return _digest(type(model).__name__, (stored[name] for name in parameters))


def _first_values(directory: Path) -> dict[str, tuple[torch.Size, torch.Tensor]] | None:
    """Shape and first values of each tensor; None where one is not of a float type that float32 can hold."""
    found = {}
    for path in weight_files(directory):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                part = file.get_slice(name)
                shape = torch.Size(part.get_shape())
                if part.get_dtype() not in ("F32", "F16", "BF16"):
                    return None
                rows = math.ceil(SAMPLED / max(1, math.prod(shape[1:])))
                values = part[:rows] if shape else file.get_tensor(name)
                found[name] = shape, values.flatten()[:SAMPLED]
    return found


def _digest(kind: str, samples: Iterable[tuple[torch.Size, torch.Tensor]]) -> str:
    content = hashlib.sha256(kind.encode())
    for shape, values in samples:
        content.update(repr((tuple(shape), values.to(torch.bfloat16).float().tolist())).encode())
    return content.hexdigest()[:32]
