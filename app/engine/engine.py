"""The engine: a loaded target, its worker, and the calls a program or the API makes."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch

from app.engine.calls import ProgramCalls
from app.engine.config import EngineConfig, check_drafter
from app.engine.correction import Corrections
from app.engine.cost.measure import ModelMemory, given_curve, measure_draft, price_steps
from app.engine.cost.prior import PriorRows
from app.engine.decoder import Decoder
from app.engine.draft.model import DraftModel, build_draft
from app.engine.errors import ModelLoadError
from app.engine.events import EngineObserver, EventSink
from app.engine.forward.selfcheck import build_target
from app.engine.forward.target import PackedTarget
from app.engine.generation import Generation
from app.engine.instruments import Instruments
from app.engine.interface import STEP_ROWS, DraftingStatus, EngineStatus, ModelInfo
from app.engine.interruption import told
from app.engine.kernels import compile_ahead, compile_now
from app.engine.models.cache import cache_directory
from app.engine.models.device import choose_threads, kv_budget
from app.engine.models.identity import table_fingerprint
from app.engine.models.loading import LoadedModel, load_model
from app.engine.prefix.cache import PrefixCache
from app.engine.request import (
    GenerationRequest,
    SamplingParams,
    SpeculationParams,
    StopParams,
)
from app.engine.scheduler.scheduler import Scheduler
from app.engine.submission import Handle, checked, new_generation
from app.engine.tenants import Tenants
from racer.auto import Shared
from racer.drafter import Drafter, NullDrafter
from racer.factory import new_drafter

__all__ = ["Engine", "EngineConfig"]

logger = logging.getLogger(__name__)

LOGIT_ELEMENTS = 1 << 26  # rows x vocabulary that one prefill chunk may bring into being


class Engine(ProgramCalls, Instruments):
    """A target model that decodes speculatively. Thread-safe; close it when done, or use it in a `with`."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        *,
        name: str | None = None,
        observer: EngineObserver | None = None,
        memory: ModelMemory | None = None,
        draft: LoadedModel | None = None,
        draft_memory: ModelMemory | None = None,
    ) -> None:
        """memory, draft_memory: where the measured cost curves are kept from one start to the next.

        draft: a small model of the target's vocabulary. Raises ModelLoadError if it does not fit.
        """
        check_drafter(config, draft is not None)
        if config.verifier == "csd" and not config.csd.allowed:
            raise ModelLoadError("The verifier csd must be allowed: set allow_csd.")
        self.config = config
        self.codec = loaded.codec
        model = loaded.model
        vocab_size = min(int(model.get_output_embeddings().weight.shape[0]), loaded.codec.vocab_size)
        limit = loaded.max_context
        if config.max_context is not None:
            if config.max_context > limit:
                raise ModelLoadError(f"max_context {config.max_context} is more than the model's {limit} tokens")
            limit = config.max_context
        target, reason = build_target(model, limit, check=config.self_check)
        self.fallback_reason = reason
        chunk = max(1, min(config.prefill_chunk, LOGIT_ELEMENTS // vocab_size))
        self._draft: DraftModel | None = None
        if draft is not None and isinstance(target, PackedTarget):
            self._draft = build_draft(loaded, draft, target, max_context=limit, prefill_chunk=chunk, check=config.self_check)
        token_bytes = target.bytes_per_token + (self._draft.bytes_per_token if self._draft else 0)
        # between two of its chunks, the prior keeps the row of its start token
        kv_tokens = kv_budget(token_bytes, loaded.device, config.kv_memory_fraction) - int(self._wants_prior)
        max_context = min(limit, kv_tokens - config.max_nodes)
        if max_context < 1:
            raise ModelLoadError("no memory for a KV cache: raise kv_memory_fraction or choose a smaller model")
        if max_context < limit:
            logger.warning("the context is cut from %d to %d tokens: more KV does not fit the budget", limit, max_context)
        self._racer = replace(config.racer, context=config.racer.context or max_context)
        self._tenants = Tenants(config.racer, enabled=config.warm_start)
        self._shared = Shared()
        decoder = Decoder(
            target,
            vocab_size=vocab_size,
            top_k=min(config.racer.breadth, vocab_size),
            prefill_chunk=chunk,
            draft_model=self._draft,
        )
        self._decoder = decoder
        compile_now(config)  # before anything is measured
        if target.trees:
            price_steps(decoder, given_curve(config.cost_curve), max_context, memory)
        if self._draft is not None:
            fixed = given_curve(config.draft_curve)
            self._draft.curve, self._draft.refine = fixed or measure_draft(self._draft, draft_memory), fixed is None
        self.info = ModelInfo(
            name=name or loaded.name,
            architecture=type(model).__name__,
            dtype=str(loaded.dtype).removeprefix("torch."),
            device=str(loaded.device),
            threads=torch.get_num_threads(),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            vocab_size=vocab_size,
            max_context=max_context,
            tree_attention=target.trees,
            drafter=config.drafter if target.trees else "none",
            verifier=config.verifier if target.trees else "exact",
            max_nodes=config.max_nodes,
            draft=self._draft.name if self._draft else None,
            csd=config.csd.allowed and target.trees,
        )
        self._prior = self._new_prior(loaded, memory) if target.trees else None
        # csd accepts more of the same candidates: what it teaches stays apart; the prior rows are the model's, for both
        self._shared_csd = Shared(self._shared.prior_ids, self._shared.prior_probs)
        self.corrections: Corrections | None = None
        if self.info.csd:
            self.corrections = Corrections(config.csd, table_fingerprint(loaded, draft))
            decoder.corrections = self.corrections.memory
            self.corrections.start()
        self.protected_ids = frozenset(loaded.eos_ids) | frozenset(loaded.codec.tokenizer.all_special_ids)
        self._worker = Scheduler(
            decoder,
            self._new_drafter,
            max_running=config.max_running,
            max_queued=config.max_queued,
            kv_tokens=kv_tokens,
            max_failures=config.max_failures,
            observer=observer,
            idle=self._idle,
            prefixes=PrefixCache(config.max_conversations, config.conversation_memory, config.conversation_idle),
        )
        self._ready = False
        self._worker.start()
        self._prove()

    @classmethod
    def from_pretrained(
        cls,
        target: str,
        config: EngineConfig | None = None,
        *,
        draft: str | None = None,
        dtype: str = "auto",
        device: str = "auto",
        threads: int | None = None,
        chat_template: Path | None = None,
        parse_special_tokens: bool = False,
        cache_dir: Path | None = None,
        served_name: str | None = None,
        observer: EngineObserver | None = None,
    ) -> Engine:
        """Load a hub id, a directory, a .gguf file or a built-in name. Raises ModelLoadError, which says what to do.

        draft: a smaller model of the target's vocabulary, named the same way.
        """
        with told(target):
            config = config or EngineConfig()
            check_drafter(config, draft is not None)
            choose_threads(threads)
            compile_ahead(config)
            loaded = load_model(
                target,
                dtype=dtype,
                device=device,
                cache_dir=cache_dir,
                chat_template=chat_template,
                parse_special_tokens=parse_special_tokens,
            )
            cache = cache_directory(cache_dir)
            small = load_model(draft, dtype=dtype, device=device, cache_dir=cache_dir) if draft is not None else None
            return cls(
                loaded,
                config,
                name=served_name,
                observer=observer,
                memory=ModelMemory(cache, loaded),
                draft=small,
                draft_memory=None if small is None else ModelMemory(cache, small, drafts=True),
            )

    # -- what the API uses -----------------------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, sink: EventSink) -> Handle:
        """Queue a generation. Events come on the worker thread; the last is Finished or Failed.

        Raises InvalidRequest, ContextLengthExceeded, QueueFull or EngineClosed before anything is queued.
        """
        request = checked(request, self.info, self.config)
        rule = None
        if request.speculation.verifier == "csd" and self.corrections is not None:
            rule = self.corrections.rule(request.speculation)
        generation = new_generation(request, sink, self.codec, self.info.max_context, rule, self.protected_ids)
        self._worker.submit(generation)
        return Handle(self._worker, generation)

    @property
    def observer(self) -> EngineObserver | None:
        """Who hears of every step; may be set at any time."""
        return self._worker.pool.reporter.observer

    @observer.setter
    def observer(self, observer: EngineObserver | None) -> None:
        self._worker.pool.reporter.observer = observer

    def status(self) -> EngineStatus:
        worker, prefixes = self._worker, self._worker.slots.prefixes
        return EngineStatus(
            running=worker.running,
            waiting=worker.waiting,
            kv_usage_ratio=worker.kv_usage,
            heartbeat_age=worker.pulse.age,
            alive=worker.alive,
            ready=self._ready and worker.accepting,
            free_places=worker.free_places,
            retry_after=worker.retry_after,
            preemptions=worker.pool.preemptions,
            drafting=self._drafting_status(),
            device_bytes=torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0,
            store=None if self.corrections is None else self.corrections.status,
            conversations=prefixes.conversations,
            conversation_rows=prefixes.conversation_rows,
            conversation_bytes=prefixes.conversation_bytes,
        )

    def _drafting_status(self) -> DraftingStatus:
        curve, states = self._decoder.curve, self._worker.drafter_states
        return DraftingStatus(
            sessions=len(states),
            automaton_nodes=sum(state.automaton_nodes for state in states),
            automaton_evictions=self._worker.rounds.evictions,
            session_rows=sum(state.copy_logit_rows for state in states),
            warm_rows=self._tenants.rows,
            prior_rows=0 if self._prior is None else self._prior.done,
            plain_seconds=0.0 if self._decoder.plain is None else self._decoder.plain.step_seconds,
            step_seconds=() if curve is None else tuple(curve.at(STEP_ROWS)),
        )

    def drain(self) -> None:
        self._worker.drain()

    def close(self, grace: float = 0.0) -> None:
        if self.corrections is not None:
            self.corrections.flush(0.0)  # a hint: little is left for the end, which others may cut short
        self._worker.close(grace)
        if self._prior is not None:
            self._prior.close()
        if self.corrections is not None:
            self.corrections.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside ----------------------------------------------------------------------------------------------------------

    def _new_drafter(self, generation: Generation) -> Drafter:
        speculation = generation.request.speculation
        if speculation.drafter in ("none", "draft_model"):
            return NullDrafter()
        policy = speculation.policy or self.config.racer.policy
        shared = self._shared if generation.csd_rule is None else self._shared_csd
        return new_drafter(policy, self._racer, self._tenants.layer(generation.request.tenant), shared)

    @property
    def _wants_prior(self) -> bool:
        return self.config.prior_rows > 0 and (self.config.racer.policy == "auto" or self.config.drafter == "hybrid")

    def _new_prior(self, loaded: LoadedModel, memory: ModelMemory | None) -> PriorRows | None:
        if not self._wants_prior:
            return None
        start = loaded.codec.tokenizer.bos_token_id
        first = min(loaded.eos_ids, default=0) if start is None else start
        path = memory.prior_path if memory is not None else None
        return PriorRows(self._decoder, self._shared, first, self.config.prior_rows, path)

    def _idle(self) -> bool:
        """Called by the worker when nothing runs; True if there is more to do."""
        if self._prior is None or self._prior.complete or not self._ready:
            return False
        return self._prior.advance(self._worker.slots.free) and not self._prior.complete

    def _prove(self) -> None:
        """Draw one token, so that ready means ready and nothing is compiled in a request."""
        probe = GenerationRequest((0,), SamplingParams(seed=0), StopParams(1, ignore_eos=True), SpeculationParams("none"))
        try:
            self.generate(probe)
        except Exception as error:
            self.close()
            raise ModelLoadError(f"the model loads but cannot produce a token: {error}") from error
        self._ready = True
