"""The models of an engine as they run: how much text they have memory for, what a step costs, and their decoder."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from app.engine.config import EngineConfig
from app.engine.cost.measure import Probe, given_curve, step_costs
from app.engine.cost.measurements import Measurements
from app.engine.cost.steps import StepCosts
from app.engine.decoder import Decoder
from app.engine.draft.model import DraftModel, build_draft
from app.engine.errors import ModelLoadError
from app.engine.forward.selfcheck import build_target
from app.engine.forward.target import PackedTarget, Target
from app.engine.interface import ModelInfo
from app.engine.models.device import dtype_name, kv_budget
from app.engine.models.loading import LoadedModel
from csd.memory import CorrectionMemory

logger = logging.getLogger(__name__)

LOGIT_ELEMENTS = 1 << 26  # rows x vocabulary of the logits that one prefill chunk may compute


@dataclass(frozen=True, slots=True)
class Runtime:
    """fallback_reason: why the target decodes plainly; None where it verifies trees. chunk: tokens that prefill reads at once.

    kv_tokens: KV rows in all. costs: of a step; None where the target decodes plainly.
    """

    probe: Probe
    fallback_reason: str | None
    draft_model: DraftModel | None
    chunk: int
    kv_tokens: int
    costs: StepCosts | None

    @property
    def target(self) -> Target:
        return self.probe.target

    @property
    def vocab_size(self) -> int:
        """Ids that may be emitted."""
        return self.probe.vocab_size

    @property
    def max_context(self) -> int:
        """Tokens of one text, prompt and answer."""
        return self.probe.max_context


def build_runtime(
    loaded: LoadedModel,
    draft: LoadedModel | None,
    config: EngineConfig,
    measurements: Measurements | None,
    draft_measurements: Measurements | None,
    *,
    spare: int,
) -> Runtime:
    """spare: KV rows that are needed beside those of the sessions. Raises ModelLoadError where the models do not fit."""
    vocab_size = min(int(loaded.model.get_output_embeddings().weight.shape[0]), loaded.codec.vocab_size)
    limit = _context_limit(loaded, config)
    target, reason = build_target(loaded.model, limit, check=config.self_check)
    chunk = max(1, min(config.prefill_chunk, LOGIT_ELEMENTS // vocab_size))
    draft_model: DraftModel | None = None
    if draft is not None and isinstance(target, PackedTarget):
        draft_model = build_draft(
            loaded,
            draft,
            target,
            max_context=limit,
            prefill_chunk=chunk,
            check=config.self_check,
            fixed=given_curve(config.draft_curve),
            measurements=draft_measurements,
        )
    token_bytes = target.bytes_per_token + (draft_model.bytes_per_token if draft_model else 0)
    kv_tokens = kv_budget(token_bytes, loaded.device, config.kv_memory_fraction) - spare
    max_context = _context_that_fits(limit, kv_tokens - config.max_nodes)
    probe = Probe(target, vocab_size, min(config.racer.breadth, vocab_size), max_context)
    costs = step_costs(probe, given_curve(config.cost_curve), measurements) if target.trees else None
    return Runtime(probe, reason, draft_model, chunk, kv_tokens, costs)


def _context_limit(loaded: LoadedModel, config: EngineConfig) -> int:
    if config.max_context is None:
        return loaded.max_context
    if config.max_context > loaded.max_context:
        raise ModelLoadError(f"max_context {config.max_context} is more than the model's {loaded.max_context} tokens")
    return config.max_context


def _context_that_fits(limit: int, rows: int) -> int:
    """rows: of KV that one text may take."""
    if rows < 1:
        raise ModelLoadError("no memory for a KV cache: raise kv_memory_fraction or choose a smaller model")
    if rows < limit:
        logger.warning("the context is cut from %d to %d tokens: more KV does not fit the budget", limit, rows)
    return min(limit, rows)


def new_decoder(runtime: Runtime, corrections: CorrectionMemory | None) -> Decoder:
    return Decoder(
        runtime.target,
        vocab_size=runtime.vocab_size,
        top_k=runtime.probe.top_k,
        prefill_chunk=runtime.chunk,
        costs=runtime.costs,
        draft_model=runtime.draft_model,
        corrections=corrections,
    )


def model_info(loaded: LoadedModel, runtime: Runtime, config: EngineConfig, name: str | None) -> ModelInfo:
    """Facts about the target. name: the id that clients use, where it is not the model's own."""
    trees = runtime.target.trees
    return ModelInfo(
        name=name or loaded.name,
        architecture=type(loaded.model).__name__,
        dtype=dtype_name(loaded.dtype),
        device=str(loaded.device),
        threads=torch.get_num_threads(),
        parameters=sum(parameter.numel() for parameter in loaded.model.parameters()),
        vocab_size=runtime.vocab_size,
        max_context=runtime.max_context,
        tree_attention=trees,
        drafter=config.drafter if trees else "none",
        verifier=config.verifier if trees else "exact",
        max_nodes=config.max_nodes,
        draft=runtime.draft_model.name if runtime.draft_model else None,
        csd=config.csd.allowed and trees,
    )
