"""Parts of a split GGUF model are named as such, by their file names and by what they say inside."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from app.engine.errors import ModelLoadError
from app.engine.models.loading import load_tokenizer
from app.engine.models.source import part_of


def write(path: Path, *, parts: int = 0) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    if parts:
        writer.add_uint16("split.no", 1)
        writer.add_uint16("split.count", parts)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def refusal(path: Path, cache: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load_tokenizer(str(path), cache_dir=cache)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model-00001-of-00003.gguf", ("model", 1, 3)),
        ("a-b-Q4_K_M-00012-of-00012.gguf", ("a-b-Q4_K_M", 12, 12)),
        ("model-00001-of-00001.gguf", None),
        ("model.gguf", None),
        ("model-1-of-3.gguf", None),
    ],
)
def test_names(name: str, part: tuple[str, int, int] | None):
    assert part_of(name) == part


def test_a_part_and_a_directory_of_parts(tmp_path: Path):
    cache = tmp_path / "cache"
    models = tmp_path / "models"
    models.mkdir()
    for number in (1, 2):
        write(models / f"big-0000{number}-of-00003.gguf", parts=3)
        said = refusal(models / f"big-0000{number}-of-00003.gguf", cache)
        assert f"part {number} of 3" in said
        assert "--merge big-00001-of-00003.gguf big.gguf" in said
    assert "2 of 3 parts" in refusal(models, cache)
    write(models / "other.gguf")
    assert "3 .gguf files" in refusal(models, cache)


def test_a_part_by_another_name(tmp_path: Path):
    write(tmp_path / "renamed.gguf", parts=4)
    said = refusal(tmp_path / "renamed.gguf", tmp_path / "cache")
    assert "part 2 of 4" in said
    assert "--merge" in said
