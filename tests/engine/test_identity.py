"""A table's models are identified from their files just as from the loaded weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.engine.models import identity
from app.engine.models.identity import table_fingerprint, table_of
from app.engine.models.loading import load_model
from tests.models import build
from tests.tiny import tokenizer


def save(directory: Path, name: str, seed: int = 0) -> str:
    build(name, seed).save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return str(directory)


def whole(target: str, draft: str | None = None) -> str:
    return table_fingerprint(load_model(target, dtype="fp32"), load_model(draft, dtype="fp32") if draft else None)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2"])
def test_the_files_tell_what_the_weights_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    target, draft = save(tmp_path / "target", name), save(tmp_path / "draft", "llama", 1)
    expected = whole(target, draft), whole(target)
    assert expected[0] != expected[1] != whole(draft)
    monkeypatch.setattr(identity, "load_model", None)  # nothing is loaded
    for dtype in ("fp32", "bf16"):
        assert (table_of(target, draft, dtype), table_of(target, None, dtype)) == expected


def test_files_with_more_than_the_parameters_are_loaded(tmp_path: Path) -> None:
    target = save(tmp_path / "target", "llama")
    expected = whole(target)
    path = tmp_path / "target" / "model.safetensors"
    save_file({**load_file(path), "extra.weight": torch.zeros(3)}, path, {"format": "pt"})
    assert table_of(target, None, "fp32") == expected
