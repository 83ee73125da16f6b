"""What a start costs: nothing is done twice, and no more of it than is needed."""

from __future__ import annotations

import dataclasses
import gc
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import modeling_gguf_pytorch_utils as library

from app import process
from app.engine import engine, kernels
from app.engine.config import EngineConfig
from app.engine.cost import measure as cost
from app.engine.cost.measurements import Measurements
from app.engine.forward.selfcheck import disagreement
from app.engine.forward.target import PackedTarget
from app.engine.models.gguf.reading import read_once
from app.engine.models.loading import load_model
from racer.drafter import RacerConfig
from tests.engine.gguf_files import write_gguf
from tests.engine.test_loading import tiny
from tests.models import VOCABULARY
from tests.text.samples import byte_level
from tests.tiny import loaded


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tokenizer = byte_level()
    write_gguf(tmp_path / "made.gguf", tiny("llama", len(tokenizer)), tokenizer)
    return tmp_path / "made.gguf"


def test_a_gguf_file_is_opened_once_and_parsed_twice(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for configuration and tokenizer, once with the weights."""
    counts: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    counted(gguf.GGUFReader, "_build_tensors")
    counted(library, "load_gguf_checkpoint")
    counted(gguf, "get_tensor_name_map")
    patched = gguf.GGUFReader, library.load_gguf_checkpoint, gguf.get_tensor_name_map
    load_model(str(file), dtype="float32", device="cpu", cache_dir=file.parent / "cache")
    assert counts == {"_build_tensors": 1, "load_gguf_checkpoint": 2, "get_tensor_name_map": 1}
    assert (gguf.GGUFReader, library.load_gguf_checkpoint, gguf.get_tensor_name_map) == patched  # as they were


def test_readers_of_the_facts_do_not_change_each_others(file: Path) -> None:
    with read_once(file):
        first = library.load_gguf_checkpoint(str(file))
        size = len(first["tokenizer"]["tokens"])
        first["tokenizer"]["tokens"].clear()
        first["config"].clear()
        second = library.load_gguf_checkpoint(str(file))
        assert len(second["tokenizer"]["tokens"]) == size
        assert second["config"]["model_type"] == "llama"


def test_other_files_are_read_as_ever(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    write_gguf(other, tiny("qwen2", 402), byte_level())
    with read_once(file):
        assert library.load_gguf_checkpoint(str(other))["config"]["model_type"] == "qwen2"
        assert gguf.GGUFReader(other).fields["general.architecture"].contents() == "qwen2"


@pytest.mark.parametrize(("gains", "rounds"), [((0.0,), 2), ((0.5, 0.5, 0.0), 4), ((0.5,) * 9, cost.ROUNDS)])
def test_costs_are_measured_until_they_settle(monkeypatch: pytest.MonkeyPatch, gains: tuple[float, ...], rounds: int) -> None:
    """gains: by how much the least time falls from one round to the next; the first round only warms up."""
    probe = cost.Probe(PackedTarget(loaded().model), VOCABULARY, 4, 64)
    calls: list[int] = []

    def step(_: Any, __: Any, size: int) -> float:
        calls.append(size)
        done = calls.count(size) - 1  # 0 while it warms up
        seconds = 0.001 * size
        for gain in gains[: max(0, done - 1)]:
            seconds *= 1.0 - gain
        return seconds

    monkeypatch.setattr(cost.Probe, "step", step)
    curve = cost.measure(probe, None, (1, 2, 4))
    assert [calls.count(size) for size in (1, 2, 4)] == [1 + rounds] * 3
    assert curve.seconds[1] == pytest.approx(2 * curve.seconds[0])


def test_kernels_are_compiled_while_the_model_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = threading.Event()
    monkeypatch.setattr(kernels, "warm_up", lambda *_: ready.set())

    def load(*_: Any, **__: Any) -> Any:
        assert ready.wait(60)
        return loaded()

    monkeypatch.setattr(engine, "load_model", load)
    with engine.Engine.from_pretrained("tiny", EngineConfig(prior_rows=0, cost_curve=((1, 0.02), (64, 0.02)))):
        pass


def test_a_failure_to_compile_ahead_is_told_by_the_engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(kernels, "warm_up", fail)
    kernels._compile_quietly(EngineConfig())
    with pytest.raises(RuntimeError, match="no compiler"):
        kernels.compile_now(EngineConfig())


@pytest.mark.parametrize(("policy", "compiled"), [("auto", ("auto",)), ("paper", ("paper", "auto"))])
def test_the_kernels_of_the_configured_policy_are_compiled(
    monkeypatch: pytest.MonkeyPatch, policy: Any, compiled: tuple[str, ...]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(kernels, "warm_up", lambda _, policies: asked.append(policies))
    kernels.compile_now(EngineConfig(racer=RacerConfig(policy=policy)))
    assert asked == [compiled]


def test_garbage_is_looked_for_seldom_until_the_process_is_ready() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    usual = process._GC_DEFAULT  # a command run in this process may have left it otherwise
    try:
        process.collect_garbage_rarely()
        assert gc.get_threshold()[0] > 10 * usual[0]
        process.collect_garbage_as_usual()
        assert gc.get_threshold() == usual
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_the_self_check_runs_each_kind_of_forward_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward costs a step, whatever its number of rows: three packed ones, and one native one to compare each with."""
    target = PackedTarget(loaded().model)
    shapes: list[tuple[int, ...]] = []
    target.model.register_forward_pre_hook(
        lambda _, __, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    assert disagreement(target) is None
    assert [rows for rows, _ in shapes] == [1, 2, 1, 6, 1, 4]  # of a batch: packed, texts; packed, leaves; packed, leaves


def test_texts_of_a_batch_are_read_as_if_alone() -> None:
    target = PackedTarget(loaded().model)
    texts = [[5, 6, 7, 8, 9, 10], [11, 12], [5, 6, 7]]
    for text, rows in zip(texts, target.native_batch(texts), strict=True):
        assert rows.shape[0] == len(text)
        assert torch.allclose(rows, target.native_logits(text), atol=1e-5)


@pytest.mark.parametrize(
    ("shares", "settled"),
    [([1.0] * 10, True), ([0.99] * 10, True), ([0.97] * 10, False), ([0.91, *[1.0] * 9], True), ([0.89, *[1.0] * 9], False)],
)
def test_costs_have_settled_when_they_fall_little_together_and_none_by_much(shares: list[float], settled: bool) -> None:
    assert cost._settled(np.array(shares)) is settled


def test_patience_ends_the_rounds_once_every_size_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine the first round, which else warms up, must do from there on."""
    probe = cost.Probe(PackedTarget(loaded().model), VOCABULARY, 4, 64)
    clock, calls = SimpleNamespace(now=0.0), []

    def step(_: Any, __: Any, size: int) -> float:
        clock.now += cost.PATIENCE * 0.6
        calls.append(size)
        return 0.01 * len(calls)

    monkeypatch.setattr(cost.Probe, "step", step)
    monkeypatch.setattr(cost, "time", SimpleNamespace(monotonic=lambda: clock.now, perf_counter=lambda: clock.now))
    curve = cost.measure(probe, None, (1, 2, 4))
    assert calls[:5] == [1, 2, 4, 1, 2]  # 1 and 2 only warmed up, and 4 came late
    assert calls[5:].count(4) == calls[5:].count(1) == 0
    assert set(curve.sizes.tolist()) >= {1, 2, 4}


def test_what_was_measured_is_kept_by_model_dtype_threads_and_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def path(seed: int = 0, dtype: torch.dtype = torch.float32, *, threads: int = 1, drafts: bool = False) -> Path:
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        measurements = Measurements(tmp_path, dataclasses.replace(loaded(seed=seed), dtype=dtype), drafts=drafts)
        return measurements._path

    assert path() == path()
    others = {path(seed=1), path(dtype=torch.bfloat16), path(threads=2), path(drafts=True)}
    assert len(others | {path()}) == 5
