"""Self-check at start: are packed trees what plain forwards of their paths say? If not, the engine decodes plainly."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from app.engine.forward.target import PackedTarget, Rows, SequentialTarget, Target
from app.engine.models.rope import freeze_rope
from racer.tree import DraftTree, Source

logger = logging.getLogger(__name__)

# Relative error of a row of logits (L2, centred). A wrong mask shows as 0.3 and more; rounding stays far below these.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6, torch.float16: 0.05, torch.bfloat16: 0.15}


def build_target(model: Any, max_context: int, *, check: bool = True) -> tuple[Target, str | None]:
    """The packed target if the model agrees with itself under tree attention, else plain decoding with the reason."""
    freeze_rope(model, max_context)
    native = model.config._attn_implementation
    reason: str | None
    try:
        target = PackedTarget(model)
        reason = disagreement(target) if check else None
        if reason is None:
            return target, None
    except Exception as error:  # any failure inside foreign model code means: this model cannot do it
        reason = f"{type(error).__name__}: {str(error)[:200]}"
    model.set_attn_implementation(native)
    logger.warning("tree attention does not hold for %s (%s); decoding plainly", type(model).__name__, reason)
    return SequentialTarget(model), reason


def disagreement(target: PackedTarget) -> str | None:
    """None if two packed sessions, with siblings, a commit and a second tree, equal plain forwards; else what differs."""
    vocabulary = int(target.model.config.get_text_config().vocab_size)
    rng = np.random.default_rng(0)
    window = _smallest_window(target.model)
    lengths = (7, 4) if window is None or window > 64 else (window + 5, 4)  # each token costs as much as one in serving
    texts = [list(map(int, rng.integers(0, vocabulary, length))) for length in lengths]
    slabs = [target.open(length + 32) for length in lengths]

    logits = target.forward([Rows.of_text(slab, text) for slab, text in zip(slabs, texts, strict=True)])
    worst = 0.0
    offset = 0
    for slab, text, plain in zip(slabs, texts, target.native_batch(texts), strict=True):
        slab.commit(list(range(len(text))))
        worst = max(worst, _error(logits[offset : offset + len(text)], plain))
        offset += len(text)
    for parents, path in (((-1, 0, 0, 1, 2, 2), [0, 2, 5]), ((-1, 0, 1, 1), [0, 1, 3])):
        trees = [_tree(rng.integers(0, vocabulary, len(parents)), parents) for _ in texts]
        logits = target.forward([Rows.of_tree(slab, tree) for slab, tree in zip(slabs, trees, strict=True)])
        paths = [(index, nodes) for index, tree in enumerate(trees) for nodes in _paths(tree)]
        spelled = [texts[index] + trees[index].tokens[nodes].tolist() for index, nodes in paths]
        for (index, nodes), plain in zip(paths, target.native_batch(spelled), strict=True):
            rows = logits[index * len(parents) : (index + 1) * len(parents)][nodes]
            worst = max(worst, _error(rows, plain[-len(nodes) :]))
        for slab, text, tree in zip(slabs, texts, trees, strict=True):
            slab.commit(path)
            text.extend(tree.tokens[path].tolist())
    tolerance = TOLERANCE.get(target.dtype, 0.05)
    if not worst <= tolerance:  # also true for NaN
        return f"logits differ by {worst:.2g}, allowed are {tolerance:.2g}"
    return None


def _paths(tree: DraftTree) -> list[list[int]]:
    """The nodes from the root to each leaf."""
    ancestors = tree.ancestors()
    leaves = sorted(set(range(len(tree))) - set(tree.parents.tolist()))
    return [np.flatnonzero(ancestors[leaf]).tolist() for leaf in leaves]


def _tree(tokens: np.ndarray, parents: tuple[int, ...]) -> DraftTree:
    depth = [0] * len(parents)
    for node in range(1, len(parents)):
        depth[node] = depth[parents[node]] + 1
    n = len(parents)
    return DraftTree(
        tokens.astype(np.int64),
        np.asarray(parents, np.int32),
        np.asarray(depth, np.int32),
        np.full(n, Source.COPY_LOGIT, np.uint8),
        np.ones(n, np.float32),
    )


def _error(ours: torch.Tensor, plain: torch.Tensor) -> float:
    a, b = ours.float(), plain.float()
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    ratio = (a - b).norm(dim=-1) / b.norm(dim=-1).clamp_min(1e-20)
    return float("nan") if torch.isnan(ratio).any() else float(ratio.max())


def _smallest_window(model: Any) -> int | None:
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    return int(window) if window else None
