"""Loading: every source, every error said in one sentence, and GGUF equal to what it was made of."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from app.engine.errors import ModelLoadError
from app.engine.models import loading
from app.engine.models.gguf import convert as gguf_convert
from app.engine.models.loading import LoadedModel, load_model
from tests.engine.gguf_files import write_gguf
from tests.text.samples import TEXTS, byte_level

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
CLASSES: dict[str, tuple[Any, Any]] = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}


CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_level()


def tiny(kind: str, vocab_size: int, **more: Any) -> Any:
    torch.manual_seed(0)
    config_class, model_class = CLASSES[kind]
    return model_class(config_class(vocab_size=vocab_size, **{**SIZES, **more})).eval()


@pytest.fixture
def saved(tmp_path: Path, tokenizer: Any) -> Path:
    path = tmp_path / "tiny-model"
    tiny("llama", len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def load(source: Path | str, cache: Path, **more: Any) -> LoadedModel:
    return load_model(str(source), **{"dtype": "float32", "device": "cpu", "cache_dir": cache, **more})


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return result


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def test_directory(saved: Path, tmp_path: Path) -> None:
    loaded = load(saved, tmp_path)
    assert (loaded.name, loaded.max_context) == ("tiny-model", 128)
    assert loaded.eos_ids == {2}
    assert (loaded.device.type, loaded.dtype) == ("cpu", torch.float32)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.codec.has_chat_template
    reference = tiny("llama", loaded.codec.vocab_size)
    assert torch.equal(logits(loaded.model, [1, 5, 9]), logits(reference, [1, 5, 9]))


def test_dtype_is_what_the_setting_says(saved: Path, tmp_path: Path) -> None:
    loaded = load(saved, tmp_path, dtype="bf16")
    assert loaded.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}


def test_eos_is_the_union_of_all_places(saved: Path, tmp_path: Path) -> None:
    edit(saved / "config.json", eos_token_id=[5, 6])
    edit(saved / "generation_config.json", eos_token_id=[6, 7])
    loaded = load(saved, tmp_path)
    assert loaded.eos_ids == {2, 5, 6, 7}
    assert loaded.codec.eos_ids == loaded.eos_ids
    nested = SimpleNamespace(eos_token_id=None, get_text_config=lambda: SimpleNamespace(eos_token_id=11))
    assert loading._eos_ids(None, nested, None) == {11}


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_gguf_gives_the_same_ids_and_logits(tmp_path: Path, tokenizer: Any, kind: str, tied: bool) -> None:
    model = tiny(kind, len(tokenizer), tie_word_embeddings=tied)
    path = tmp_path / "made.gguf"
    write_gguf(path, model, tokenizer)
    loaded = load(path, tmp_path / "cache")
    assert loaded.name == "made"
    assert loaded.config.tie_word_embeddings == tied
    for text in [*TEXTS, *(f"{text}<tool>{text}<a b é></s> {n}<|endoftext|>" for n, text in enumerate(TEXTS * 10))]:
        assert loaded.codec.encode(text) == tokenizer.encode(text)
    ids = loaded.codec.encode("the quick brown fox")
    assert torch.allclose(logits(loaded.model, ids), logits(model, ids), atol=1e-5)
    assert loaded.codec.special_ids == {0, 1, 2}
    assert loaded.codec.has_chat_template
    assert loaded.eos_ids == {2}


def test_gguf_is_converted_once_per_dtype_and_leaves_nothing_behind(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "made.gguf", tmp_path / "cache"
    write_gguf(path, tiny("llama", len(tokenizer)), tokenizer)
    first = load(tmp_path, cache)  # a directory that holds one GGUF file and no config.json
    assert [entry.name.endswith("-float32") for entry in (cache / "converted").iterdir()] == [True]
    monkeypatch.setattr(gguf_convert, "_save_model", lambda *_: pytest.fail("converted again"))
    again = load(path, cache)
    assert torch.equal(logits(first.model, [1, 5]), logits(again.model, [1, 5]))
    assert load(path, cache, dtype="bf16").dtype == torch.bfloat16  # made of the float32 one
    os.utime(path, ns=(1, 1))  # another file now
    with pytest.raises(pytest.fail.Exception):
        load(path, cache)
    assert len(list((cache / "converted").iterdir())) == 1


def test_gguf_with_single_digit_vocabulary_splits_as_its_merges_were_learnt(tmp_path: Path, tokenizer: Any) -> None:
    path = tmp_path / "made.gguf"
    write_gguf(path, tiny("llama", len(tokenizer)), tokenizer, pre="smollm")
    codec = load(path, tmp_path / "cache").codec
    pieces = [codec.tokenizer.convert_ids_to_tokens(token_id) for token_id in codec.encode("x  12", add_special_tokens=False)]
    assert pieces[-2:] == ["1", "2"]
    assert not any("Ġ" in piece and any(c.isdigit() for c in piece) for piece in pieces)


@pytest.mark.slow
def test_default_model(tmp_path: Path) -> None:
    loaded = load_model("smollm2", dtype="float32", device="cpu")
    assert (loaded.name, loaded.max_context) == ("smollm2", 8192)
    assert loaded.eos_ids == {2}
    ids = loaded.codec.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    assert "Paris" in loaded.codec.decode(
        loaded.model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0].tolist()
    )


def test_template_file(saved: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    assert load(saved, tmp_path, chat_template=file).codec.render_chat([{"role": "user", "content": "x"}]) == "<x>"
    for broken in ("{% for %}", "{{ x | nonsense }}", "{{ messages[9].content }}", " "):
        file.write_text(broken)
        with pytest.raises(ModelLoadError, match="chat_template"):
            load(saved, tmp_path, chat_template=file)
    with pytest.raises(ModelLoadError, match="cannot be read"):
        load(saved, tmp_path, chat_template=tmp_path / "none.jinja")


def test_missing_template_only_warns(saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (saved / "chat_template.jinja").unlink()
    with caplog.at_level(logging.WARNING):
        assert not load(saved, tmp_path).codec.has_chat_template
    assert "no chat template" in caplog.text


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _remove(*names: str) -> Callable[[Path], None]:
    def remove(directory: Path) -> None:
        for name in names:
            (directory / name).unlink()

    return remove


def _lose_a_part(path: Path) -> None:
    (path / "model.safetensors").unlink()
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001.safetensors"}}')


def _bert(path: Path) -> None:
    BertModel(
        BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=400)
    ).save_pretrained(path)


BREAKAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (_remove("config.json"), "no config.json"),
    "config not JSON": (lambda path: (path / "config.json").write_text("{"), "not valid JSON"),
    "no model type": (lambda path: edit(path / "config.json", model_type=...), "names no model_type"),
    "unknown architecture": (lambda path: edit(path / "config.json", model_type="zork"), "does not know .*zork"),
    "code of its own": (
        lambda path: edit(path / "config.json", model_type="zork", auto_map={"AutoConfig": "zork.Config"}),
        "code of its own",
    ),
    "not causal": (_bert, "not a causal language model"),
    "bad values": (lambda path: edit(path / "config.json", num_attention_heads="x"), "cannot be used|cannot be loaded"),
    "other sizes": (lambda path: edit(path / "config.json", hidden_size=64), "cannot be loaded"),
    "missing weights": (lambda path: edit(path / "config.json", num_hidden_layers=3), "lacks .* weights"),
    "truncated weights": (lambda path: _truncate(path / "model.safetensors"), "cut short"),
    "garbage weights": (lambda path: (path / "model.safetensors").write_bytes(b"\xff" * 500), "not a safetensors file"),
    "empty weights": (lambda path: (path / "model.safetensors").write_bytes(b""), "not a safetensors file"),
    "no weights": (_remove("model.safetensors"), "holds no weights"),
    "only pickles": (lambda path: (path / "model.safetensors").rename(path / "pytorch_model.bin"), "pickled"),
    "no tokenizer": (_remove("tokenizer.json", "tokenizer_config.json"), "tokenizer"),
    "bad tokenizer": (lambda path: (path / "tokenizer.json").write_text("{}"), "tokenizer"),
    "part missing": (_lose_a_part, "incomplete"),
}


@pytest.mark.parametrize("name", list(BREAKAGES))
def test_broken_directory_is_explained(saved: Path, tmp_path: Path, name: str) -> None:
    breakage, words = BREAKAGES[name]
    breakage(saved)
    with pytest.raises(ModelLoadError, match=words) as caught:
        load(saved, tmp_path / "cache")
    assert len(str(caught.value)) < 800


def test_broken_gguf_is_explained(tmp_path: Path, tokenizer: Any) -> None:
    path = tmp_path / "made.gguf"
    write_gguf(path, tiny("llama", len(tokenizer)), tokenizer)
    _truncate(path)
    with pytest.raises(ModelLoadError, match="cut short"):
        load(path, tmp_path / "cache")
    path.write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(ModelLoadError, match="damaged"):
        load(path, tmp_path / "cache")
    path.write_bytes(b"hello")
    with pytest.raises(ModelLoadError, match="not a GGUF file"):
        load(path, tmp_path / "cache")


@pytest.mark.parametrize("source", ["/no/such/model", "./none", "none.gguf", "a/b/c"])
def test_no_such_path(tmp_path: Path, source: str) -> None:
    with pytest.raises(ModelLoadError, match="no file or directory"):
        load(source, tmp_path)


def test_several_gguf_files_and_other_files(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ModelLoadError, match=r"2 \.gguf files"):
        load(tmp_path, tmp_path)
    with pytest.raises(ModelLoadError, match="No model is named"):
        load("", tmp_path)
    (tmp_path / "x.txt").touch()
    with pytest.raises(ModelLoadError, match="not a model"):
        load(tmp_path / "x.txt", tmp_path)


def test_hub_errors_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("secret detail")

    monkeypatch.setattr("app.engine.models.hub.snapshot_download", refuse)
    with pytest.raises(ModelLoadError, match="hub cannot be reached"):
        load("someone/model", tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError, match="HF_HUB_OFFLINE"):
        load("someone/model", tmp_path)


def test_hub_id_is_loaded_from_its_snapshot(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.engine.models.hub.snapshot_download", lambda *_, **__: str(saved))
    assert load("someone/model", tmp_path).name == "someone/model"


def test_no_memory_is_said_before_loading(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "free_memory", lambda _: 1000)
    with pytest.raises(ModelLoadError, match=r"need \d+ bytes and 1000 are free"):
        load(saved, tmp_path)


def test_settings_that_make_no_sense(saved: Path, tmp_path: Path) -> None:
    for bad in ({"dtype": "int3"}, {"device": "abacus"}, {"device": "cuda:99"}, {"device": "meta"}):
        with pytest.raises(ModelLoadError, match=next(iter(bad))):
            load(saved, tmp_path, **bad)


def _config(text: dict[str, Any], **outer: Any) -> Any:
    part = SimpleNamespace(**text)
    return SimpleNamespace(**outer, get_text_config=lambda: part)


@pytest.mark.parametrize(
    ("config", "tokenizer_limit", "expected"),
    [
        *((_config({name: 77}), 10**30, 77) for name in CONTEXT_NAMES),
        (_config({"n_ctx": 77}, max_position_embeddings=55), 10**30, 77),  # what the text part says comes first
        (_config({}, n_positions=55), 10**30, 55),
        (_config({"n_ctx": 0, "seq_length": None}), 333, 333),
        (_config({}), 10**30, loading._FALLBACK_CONTEXT),
    ],
)
def test_the_context_is_what_the_first_part_that_knows_says(config: Any, tokenizer_limit: int, expected: int) -> None:
    assert loading._max_context(config, SimpleNamespace(model_max_length=tokenizer_limit)) == expected


def test_ends_of_turn_and_message_of_a_gguf_file_end_an_answer(tmp_path: Path, tokenizer: Any) -> None:
    def say(writer: Any) -> None:
        writer.add_eot_token_id(5)
        writer.add_uint32("tokenizer.ggml.eom_token_id", 6)

    write_gguf(tmp_path / "made.gguf", tiny("llama", len(tokenizer)), tokenizer, say=say)
    assert load(tmp_path / "made.gguf", tmp_path / "cache").eos_ids == {2, 5, 6}


def test_no_memory_is_said_before_converting(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "made.gguf", tiny("llama", len(tokenizer)), tokenizer)
    monkeypatch.setattr(gguf_convert, "free_memory", lambda _: 1000)
    with pytest.raises(ModelLoadError, match=r"No memory to convert made\.gguf: it needs about \d+ bytes and 1000 are free"):
        load(tmp_path / "made.gguf", tmp_path / "cache")
    assert not list((tmp_path / "cache" / "converted").iterdir())


def test_files_that_differ_in_place_size_or_time_are_different_models(tmp_path: Path) -> None:
    identities = set()
    for name, content, time in (("a", b"x", 1), ("b", b"x", 1), ("a", b"xy", 1), ("a", b"xy", 2)):
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, ns=(time, time))
        identities.add(gguf_convert.file_identity(tmp_path / name))
    assert len(identities) == 4
