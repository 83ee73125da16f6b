"""Reads a GGUF file once: transformers parses it for configuration, tokenizer and weights each, at seconds each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import modeling_gguf_pytorch_utils as library


class _Reader(gguf.GGUFReader):
    """Slices a plain array: slicing the memory map takes ten times as long, and is done a million times."""

    @property
    def data(self) -> np.ndarray:
        return self._data

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._data = np.asarray(mapped)


@contextmanager
def read_once(path: Path) -> Iterator[None]:
    """Inside the block, transformers and gguf read this file once. Only one block at a time in a process."""
    opened, parse, names = gguf.GGUFReader, library.load_gguf_checkpoint, gguf.get_tensor_name_map
    reader = functools.cache(lambda: _Reader(path))
    facts = functools.cache(lambda: parse(str(path)))

    def shared_reader(name: Any, *more: Any, **options: Any) -> Any:
        same = not more and not options and Path(name) == path
        return reader() if same else opened(name, *more, **options)

    def shared_facts(name: Any, *more: Any, **options: Any) -> Any:
        same = not more and not any(options.values()) and Path(name) == path
        return _copied(facts()) if same else parse(name, *more, **options)

    # the table of names, too: transformers builds it for each module of the model
    _set(shared_reader, shared_facts, functools.cache(names))
    try:
        yield
    finally:
        _set(opened, parse, names)


def _set(reader: Callable[..., Any], parse: Callable[..., Any], names: Callable[..., Any]) -> None:
    gguf.GGUFReader = reader
    library.load_gguf_checkpoint = parse
    gguf.get_tensor_name_map = names


def _copied(facts: dict[str, Any]) -> dict[str, Any]:
    """A copy of two levels and the lists in them, since callers change them."""
    return {
        part: {key: list(value) if isinstance(value, list) else value for key, value in values.items()}
        for part, values in facts.items()
    }
