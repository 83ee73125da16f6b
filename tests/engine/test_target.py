"""Packed tree attention against plain forwards, for every model class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from app.engine.forward.selfcheck import build_target, disagreement
from app.engine.forward.target import PackedTarget, Rows, SequentialTarget
from app.engine.request import GenerationRequest, SamplingParams, StopParams
from racer.tree import DraftTree
from tests.models import HYBRIDS, MODELS, VOCABULARY, build
from tests.tiny import tiny_engine


def random_tree(rng: np.random.Generator, nodes: int) -> DraftTree:
    parents = [-1] + [int(rng.integers(max(0, node - 4), node)) for node in range(1, nodes)]
    depth = [0] * nodes
    for node in range(1, nodes):
        depth[node] = depth[parents[node]] + 1
    return DraftTree(
        rng.integers(0, VOCABULARY, nodes).astype(np.int64),
        np.asarray(parents, np.int32),
        np.asarray(depth, np.int32),
        np.ones(nodes, np.uint8),
        np.ones(nodes, np.float32),
    )


def path_to(tree: DraftTree, node: int) -> list[int]:
    return np.flatnonzero(tree.ancestors()[node]).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_trees_of_two_sessions_equal_plain_forwards_over_many_commits(name: str):
    target, reason = build_target(build(name), max_context=200)
    assert reason is None
    assert isinstance(target, PackedTarget)
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, VOCABULARY, length).tolist() for length in (11, 29)]
    slabs = [target.open(160) for _ in texts]
    target.forward([Rows.of_text(slab, text) for slab, text in zip(slabs, texts, strict=True)])
    for slab, text in zip(slabs, texts, strict=True):
        slab.commit(list(range(len(text))))
    for _ in range(6):  # far enough to cross the sliding window and the rope threshold
        trees = [random_tree(rng, int(rng.integers(1, 20))) for _ in texts]
        logits = target.forward([Rows.of_tree(slab, tree) for slab, tree in zip(slabs, trees, strict=True)])
        start = 0
        for slab, text, tree in zip(slabs, texts, trees, strict=True):
            path = path_to(tree, int(np.argmax(tree.depth)))
            plain = target.native_logits(text + tree.tokens[path].tolist())[-len(path) :]
            torch.testing.assert_close(logits[start : start + len(tree)][path], plain, rtol=1e-4, atol=1e-4)
            slab.commit(path)
            text.extend(tree.tokens[path].tolist())
            assert slab.length == len(text)
            start += len(tree)


def test_a_cache_after_commits_equals_a_fresh_prefill():
    target = PackedTarget(build("qwen2"))
    rng = np.random.default_rng(2)
    text = rng.integers(0, VOCABULARY, 7).tolist()
    slab = target.open(100)
    target.forward([Rows.of_text(slab, text)])
    slab.commit(list(range(7)))
    for _ in range(5):
        tree = random_tree(rng, 12)
        target.forward([Rows.of_tree(slab, tree)])
        path = path_to(tree, int(rng.integers(0, 12)))
        slab.commit(path)
        text.extend(tree.tokens[path].tolist())
    fresh = target.open(100)
    target.forward([Rows.of_text(fresh, text)])
    for layer in range(3):
        torch.testing.assert_close(slab.keys[layer][:, : len(text)], fresh.keys[layer][:, : len(text)], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            slab.values[layer][:, : len(text)], fresh.values[layer][:, : len(text)], rtol=1e-4, atol=1e-5
        )


def test_prefill_in_chunks_gives_the_rows_asked_for():
    target = PackedTarget(build("llama"))
    text = np.random.default_rng(3).integers(0, VOCABULARY, 23).tolist()
    whole = target.native_logits(text)
    slab = target.open(40)
    for start in range(0, 23, 5):
        chunk = text[start : start + 5]
        logits = target.forward([Rows.of_text(slab, chunk, logits_from=len(chunk) - 2)])
        slab.commit(list(range(len(chunk))))
        torch.testing.assert_close(logits, whole[start + len(chunk) - 2 : start + len(chunk)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_falls_back_to_plain_decoding_with_a_log_line(name: str, caplog: pytest.LogCaptureFixture):
    model = build(name)
    text = np.random.default_rng(4).integers(0, VOCABULARY, 12).tolist()
    with torch.inference_mode():
        plain = model(input_ids=torch.tensor([text]), use_cache=False).logits[0]
    target, reason = build_target(model, max_context=200)
    assert isinstance(target, SequentialTarget)
    assert reason
    assert "decoding plainly" in caplog.text
    cache = target.open(64)
    first = target.forward([Rows.of_text(cache, text[:8], logits_from=7)])
    cache.commit(list(range(8)))
    rows = [first]
    for token in text[8:]:
        rows.append(target.forward([Rows.of_text(cache, [token])]))
        cache.commit([0])
    torch.testing.assert_close(torch.cat(rows), plain[7:], rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="plainly"):
        target.forward([Rows.of_tree(cache, random_tree(np.random.default_rng(0), 5))])


def test_the_self_check_sees_a_mask_that_is_ignored(monkeypatch: pytest.MonkeyPatch):
    target = PackedTarget(build("llama"))
    assert disagreement(target) is None
    monkeypatch.setattr("app.engine.forward.attention.Segment.bias", lambda *_: None)
    assert "logits differ" in (disagreement(target) or "")


def test_a_failed_check_gives_the_model_its_own_attention_back(monkeypatch: pytest.MonkeyPatch):
    model = build("llama")
    native = model.config._attn_implementation
    monkeypatch.setattr("app.engine.forward.selfcheck.disagreement", lambda _: "made to fail")
    target, reason = build_target(model, max_context=64)
    assert isinstance(target, SequentialTarget)
    assert reason == "made to fail"
    assert model.config._attn_implementation == native


def test_commit_refuses_a_path_that_does_not_ascend():
    target = PackedTarget(build("llama"))
    with pytest.raises(ValueError, match="ascend"):
        target.open(8).commit([0, 2, 1])


def test_rows_beyond_the_slab_are_refused():
    target = PackedTarget(build("llama"))
    with pytest.raises(ValueError, match="do not fit"):
        target.forward([Rows.of_text(target.open(4), [1, 2, 3, 4, 5])])


@pytest.mark.parametrize("rows", [31, 33, 60, 64, 65, 80, 101])
def test_padding_of_16_bit_forwards_changes_no_row(rows: int):
    model = build("llama", 0).to(torch.bfloat16)
    target = PackedTarget(model)
    tokens = [3 + n % 90 for n in range(rows)]
    slabs = [target.open(rows + 8), target.open(16)]
    logits = target.forward([Rows.of_text(slabs[0], tokens), Rows.of_text(slabs[1], tokens[:5], 4)])
    assert logits.shape[0] == rows + 1
    assert torch.isfinite(logits).all()
    native = target.native_logits(tokens)
    assert torch.allclose(logits[:rows].float(), native.float(), atol=0.05)
    assert torch.allclose(logits[rows].float(), native[4].float(), atol=0.05)


@pytest.mark.slow
def test_16_bit_products_come_in_few_numbers_of_rows():
    """Each number of rows costs memory for good, in the layers and in the head."""
    target = PackedTarget(build("llama", 0).to(torch.bfloat16))
    widths: dict[str, set[int]] = {"layers": set(), "head": set()}
    layer, head = target.model.model.layers[0].mlp.up_proj, target.model.get_output_embeddings()
    for name, module in (("layers", layer), ("head", head)):
        module.register_forward_pre_hook(lambda _, given, name=name: widths[name].add(given[0].shape[-2]))
    slab = target.open(260)
    for rows in range(1, 257):
        for asked in (1, max(1, rows - 3), rows):
            assert target.forward([Rows.of_text(slab, [3] * rows, rows - asked)]).shape[0] == asked
    for seen in widths.values():
        assert {*range(1, 33)} < seen
        assert len(seen) <= 32 + 8 + 12


def test_a_native_cache_reads_no_token_twice_when_a_step_is_repeated(monkeypatch: pytest.MonkeyPatch):
    """A step that fails for one session is repeated for the others, whose caches cannot be rolled back."""
    with tiny_engine("qwen3-next", eos=frozenset()) as engine:
        requests = [
            GenerationRequest(tuple(range(first, first + 20)), SamplingParams(0.0), StopParams(16)) for first in (10, 20, 30)
        ]
        alone = [engine.generate(one).token_ids for one in requests]
        target = engine._decoder.target
        forward, failures = target.forward, 0

        def failing(batch: Sequence[Rows]) -> torch.Tensor:
            nonlocal failures
            if len(batch) == 3:
                failures += 1
                forward(batch[:2])
                raise RuntimeError("the third session fails")
            return forward(batch)

        monkeypatch.setattr(target, "forward", failing)
        together = engine.generate_all(requests)
        assert failures > 0
        assert [done.token_ids for done in together] == alone
