"""Loads a target or draft model with its tokenizer, from a known name, a directory, a GGUF file or a hub id."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from app.engine.errors import ModelLoadError
from app.engine.models.cache import alone_in, cache_directory, discard
from app.engine.models.checkpoint import Checkpoint, read_checkpoint, unreadable
from app.engine.models.device import choose_device, choose_dtype, dtype_name, free_memory
from app.engine.models.source import ModelDirectory, locate
from app.text.codec import TextCodec
from app.text.errors import ChatTemplateError

logger = logging.getLogger(__name__)

_NO_LIMIT = 1_000_000  # tokenizers without a limit give a huge number
_FALLBACK_CONTEXT = 2048  # tokens, where neither config nor tokenizer states a limit
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")


class _NoMemory(ModelLoadError):
    """The files are undamaged, but the model is too large."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run: in eval mode, without gradients, on its device."""

    model: Any  # a transformers PreTrainedModel for causal language modelling
    codec: TextCodec
    name: str  # the known name, hub id, directory name, or file name without suffix
    config: Any
    eos_ids: frozenset[int]
    max_context: int  # tokens
    device: torch.device
    dtype: torch.dtype


def load_model(
    source: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    cache_dir: Path | str | None = None,
    chat_template: Path | str | None = None,
    parse_special_tokens: bool = False,
    revision: str | None = None,
) -> LoadedModel:
    """Load a model for inference.

    source: a known name (`smollm2`), a directory, a .gguf file, or a hub id, tried in this order; `./smollm2` is always a
    path. chat_template: a jinja file used in place of the model's template. parse_special_tokens: see TextCodec. revision: of
    a hub id. Code that comes with a model is never run. Raises ModelLoadError whose message says what to do.
    """
    started = time.monotonic()
    place = choose_device(device)
    number_format = choose_dtype(dtype, place)
    template_file = None if chat_template is None else Path(chat_template)
    template = None if template_file is None else _read_template(template_file)
    transformers_logging.disable_progress_bar()  # weights of a local directory come in a second or two
    name, config, tokenizer, model = _read(source, revision, number_format, place, cache_directory(cache_dir))
    eos_ids = _eos_ids(tokenizer.eos_token_id, config, getattr(model, "generation_config", None))
    codec = TextCodec(tokenizer, eos_ids, template, parse_special_tokens=parse_special_tokens)
    _check_template(codec, name, template_file)
    took = time.monotonic() - started
    logger.info("Loaded %s (%s, %s on %s) in %.1f s", name, config.model_type, dtype_name(number_format), place, took)
    return LoadedModel(model, codec, name, model.config, eos_ids, _max_context(config, tokenizer), place, number_format)


def _read(
    source: str, revision: str | None, dtype: torch.dtype, device: torch.device, cache: Path
) -> tuple[str, Any, Any, Any]:
    """Name, configuration, tokenizer and model. A conversion of a GGUF file that turns out to be damaged is made again."""
    found = locate(source, dtype, cache, revision)
    try:
        return found.name, *_read_directory(found, dtype, device)
    except _NoMemory:
        raise
    except ModelLoadError as error:
        if not found.converted:
            raise
        logger.warning("%s is damaged: converting again. %s", found.path, error)
    with alone_in(found.path.parent):
        discard(found.path)
    found = locate(source, dtype, cache, revision)
    return found.name, *_read_directory(found, dtype, device)


def _read_directory(found: ModelDirectory, dtype: torch.dtype, device: torch.device) -> tuple[Any, Any, Any]:
    """Configuration, tokenizer and model."""
    checkpoint = read_checkpoint(found.path)
    config = _load_config(found.path, checkpoint)
    tokenizer = _load_tokenizer(found)
    return config, tokenizer, _load_weights(found.path, config, checkpoint, dtype, device)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's directory, with what can be read without its weights."""

    directory: Path
    config: Any
    tokenizer: Any


def find_model(source: str, *, dtype: str = "auto", cache_dir: Path | str | None = None) -> ModelFiles:
    """Files, configuration and tokenizer of anything load_model takes. Raises ModelLoadError."""
    found = locate(source, choose_dtype(dtype, choose_device()), cache_directory(cache_dir), None)
    config = _load_config(found.path, read_checkpoint(found.path))
    return ModelFiles(found.path, config, _load_tokenizer(found))


def load_tokenizer(source: str, *, cache_dir: Path | str | None = None, revision: str | None = None) -> Any:
    """The tokenizer alone, of anything load_model takes. Raises ModelLoadError."""
    dtype = choose_dtype("auto", torch.device("cpu"))
    return _load_tokenizer(locate(source, dtype, cache_directory(cache_dir), revision))


def _load_config(directory: Path, checkpoint: Checkpoint) -> Any:
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # any code may read the values of config.json: whatever fails, the config is unusable
        raise ModelLoadError(_explain_config(directory, checkpoint.config, error)) from error
    architectures = checkpoint.config.get("architectures") or []
    generates = not architectures or any(name.endswith(("CausalLM", "LMHeadModel", "Generation")) for name in architectures)
    if not generates or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or getattr(config, "is_encoder_decoder", False):
        what = architectures[0] if architectures else config.model_type
        raise ModelLoadError(f"{directory} ({what}) is not a causal language model.")
    return config


def _explain_config(directory: Path, config: dict[str, Any], error: Exception) -> str:
    kind = config["model_type"]
    if "auto_map" in config:
        return (
            f"{directory} needs code of its own (model_type {kind!r}), which is not run here. Use a model transformers knows."
        )
    if isinstance(error, KeyError | ValueError) and "does not recognize this architecture" in str(error):
        return f"{directory} has an architecture that this version of transformers does not know (model_type {kind!r})."
    return f"The config.json of {directory} cannot be used: {_first_line(error)}"


def _load_tokenizer(found: ModelDirectory) -> Any:
    directory = found.path
    # For some model types the automatic choice is a class that rebuilds parts of the tokenizer. That repairs wrong hub files,
    # but would undo the repairs of the conversion.
    kind = PreTrainedTokenizerFast if found.converted else AutoTokenizer
    try:
        tokenizer = kind.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # damaged and missing tokenizer files fail in many ways
        raise ModelLoadError(f"The tokenizer of {directory} cannot be loaded: {_first_line(error)}") from error
    if getattr(tokenizer, "backend_tokenizer", None) is None or not tokenizer.is_fast:
        raise ModelLoadError(f"The tokenizer of {directory} has no fast version (tokenizer.json), which is needed.")
    return tokenizer


def _load_weights(directory: Path, config: Any, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Any:
    needed, free = checkpoint.bytes_in(dtype.itemsize), free_memory(device)
    if needed > free:
        raise _NoMemory(_no_memory(directory, device, needed, free))
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
        absent = sorted(report["missing_keys"])
        if absent:  # they would be random
            raise ModelLoadError(f"{directory} lacks {len(absent)} weights of a {type(model).__name__}, {absent[0]} for one.")
        model.to(device)
    except ModelLoadError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _NoMemory(_no_memory(directory, device, needed, free)) from error
    except Exception as error:  # damaged files and wrong configs can fail anywhere in the model's code
        raise ModelLoadError(f"{directory} cannot be loaded: {_first_line(error)}") from error
    return model.eval().requires_grad_(False)


def _no_memory(directory: Path, device: torch.device, needed: int, free: int) -> str:
    return (
        f"No memory for {directory} on {device}: the weights need {needed} bytes and {free} are free. "
        "Use a smaller model or a shorter dtype."
    )


def _read_template(path: Path) -> str:
    try:
        template = path.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"chat_template: {path} is not UTF-8 text.") from error
    if not template.strip():
        raise ModelLoadError(f"chat_template: {path} is empty.")
    return template


def _check_template(codec: TextCodec, name: str, file: Path | None) -> None:
    """Raise ModelLoadError for a template file that fails. If the model's own template fails, only warn: other routes work."""
    if not codec.has_chat_template:
        logger.warning("%s has no chat template: chat requests will be refused until a template file is given", name)
        return
    try:
        codec.render_chat([{"role": "user", "content": "Hello"}])
    except ChatTemplateError as error:
        if file is not None:
            raise ModelLoadError(f"chat_template: {file} cannot be used. {error}") from error
        logger.warning("The chat template of %s fails on a plain message, chat requests may be refused: %s", name, error)


def _eos_ids(tokenizer_eos: int | None, config: Any, generation_config: Any) -> frozenset[int]:
    """The end tokens of tokenizer, generation config and config: an id is often given in one of them only."""
    values = [tokenizer_eos, getattr(generation_config, "eos_token_id", None)]
    values += [getattr(part, "eos_token_id", None) for part in (config, config.get_text_config())]
    ids: set[int] = set()
    for value in values:
        many: Iterable[Any] = value if isinstance(value, list | tuple | set) else (value,)
        ids.update(int(one) for one in many if isinstance(one, int) and one >= 0)
    return frozenset(ids)


def _max_context(config: Any, tokenizer: Any) -> int:
    for part in (config.get_text_config(), config):
        for name in _CONTEXT_NAMES:
            value = getattr(part, name, None)
            if isinstance(value, int) and value > 0:
                return value
    limit = int(min(tokenizer.model_max_length, _NO_LIMIT))
    if limit < _NO_LIMIT:
        return limit
    logger.warning("The model states no context length; taking %d tokens", _FALLBACK_CONTEXT)
    return _FALLBACK_CONTEXT


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300]}" if text else type(error).__name__
