"""The engine: a loaded target, its scheduler, and the calls a program or the API makes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import torch

from app.engine import calls
from app.engine.calls import Completion
from app.engine.config import EngineConfig, check_drafter
from app.engine.correction import Corrections
from app.engine.cost.measurements import Measurements
from app.engine.cost.prior import PriorRows
from app.engine.drafters import Drafters
from app.engine.errors import ModelLoadError
from app.engine.events import Delta, EngineObserver, EventSink, Finished
from app.engine.instruments import Instruments
from app.engine.interface import STEP_ROWS, DraftingStatus, EngineStatus
from app.engine.interruption import report_interruption
from app.engine.kernels import compile_ahead, compile_now
from app.engine.models.cache import cache_directory
from app.engine.models.device import choose_threads
from app.engine.models.identity import table_fingerprint
from app.engine.models.loading import LoadedModel, load_model
from app.engine.prefix.cache import PrefixCache
from app.engine.request import (
    GenerationRequest,
    SamplingParams,
    SpeculationParams,
    StopParams,
)
from app.engine.runtime import Runtime, build_runtime, model_info, new_decoder
from app.engine.scheduler.scheduler import Scheduler
from app.engine.submission import Handle, checked, new_generation
from racer.auto import Shared

__all__ = ["Engine", "EngineConfig"]


class Engine:
    """A target model that decodes speculatively. Thread-safe; close it when done, or use it in a `with`.

    instruments: for calibration and benchmarks. protected_ids: tokens that csd neither inserts nor replaces.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        *,
        name: str | None = None,
        observer: EngineObserver | None = None,
        measurements: Measurements | None = None,
        draft: LoadedModel | None = None,
        draft_measurements: Measurements | None = None,
    ) -> None:
        """measurements, draft_measurements: files that keep the measured cost curves for the next start.

        draft: a small model of the target's vocabulary. Raises ModelLoadError if it does not fit.
        """
        check_drafter(config, draft is not None)
        if config.verifier == "csd" and not config.csd.allowed:
            raise ModelLoadError("The verifier csd must be allowed: set allow_csd.")
        self.config = config
        self.codec = loaded.codec
        self.protected_ids = frozenset(loaded.eos_ids) | frozenset(loaded.codec.tokenizer.all_special_ids)
        compile_now(config)  # before anything is measured
        # the prior rows keep one KV row, of their start token
        runtime = build_runtime(loaded, draft, config, measurements, draft_measurements, spare=int(_wants_prior(config)))
        self.fallback_reason = runtime.fallback_reason
        self.info = model_info(loaded, runtime, config, name)
        self._prior = _prior_rows(loaded, config, runtime, measurements)
        prior = () if self._prior is None else (self._prior.ids, self._prior.probs)
        self._drafters = Drafters(config.racer, runtime.max_context, Shared(*prior), Shared(*prior), warm=config.warm_start)
        self.corrections = Corrections(config.csd, table_fingerprint(loaded, draft)) if self.info.csd else None
        self._decoder = new_decoder(runtime, None if self.corrections is None else self.corrections.memory)
        self._scheduler = Scheduler(
            self._decoder,
            self._drafters.new,
            max_running=config.max_running,
            max_queued=config.max_queued,
            kv_tokens=runtime.kv_tokens,
            max_failures=config.max_failures,
            observer=observer,
            idle=self._idle,
            prefixes=PrefixCache(config.max_conversations, config.conversation_memory, config.conversation_idle),
        )
        self.instruments = Instruments(self._decoder, self._drafters, self._prior, self._scheduler)
        self._ready = False
        if self.corrections is not None:
            self.corrections.start()
        self._scheduler.start()
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
        """Load a hub id, a directory, a .gguf file or a built-in name. Raises ModelLoadError whose message says what to do.

        draft: a smaller model of the target's vocabulary, named the same way.
        """
        with report_interruption(target):
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
                measurements=Measurements(cache, loaded),
                draft=small,
                draft_measurements=None if small is None else Measurements(cache, small, drafts=True),
            )

    # -- what a program calls --------------------------------------------------------------------------------------------

    def stream(self, request: GenerationRequest) -> Generator[Delta | Finished]:
        """Yields Deltas and then Finished; raises where the generation fails. Closing the iterator cancels it."""
        return calls.stream(self.submit, request)

    def generate(
        self,
        prompt: str | Sequence[int] | GenerationRequest,
        *,
        sampling: SamplingParams | None = None,
        stopping: StopParams | None = None,
        speculation: SpeculationParams | None = None,
    ) -> Completion:
        """A whole answer to a text, to token ids, or to a request. Sampling defaults to greedy."""
        if not isinstance(prompt, GenerationRequest):
            ids = self.codec.encode(prompt) if isinstance(prompt, str) else prompt
            prompt = GenerationRequest(
                tuple(ids),
                sampling or SamplingParams(temperature=0.0),
                stopping or StopParams(),
                speculation or SpeculationParams(),
                continue_text=True,
            )
        return calls.collect(self.stream(prompt))

    def generate_all(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Answers to many requests that run together."""
        return calls.complete_all(self.submit, requests)

    # -- what the API uses -----------------------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, sink: EventSink) -> Handle:
        """Queue a generation. Its events are delivered on the worker thread; the last is Finished or Failed.

        Raises InvalidRequest, ContextLengthExceeded, QueueFull or EngineClosed before anything is queued.
        """
        request = checked(request, self.info, self.config)
        rule = None
        if request.speculation.verifier == "csd" and self.corrections is not None:
            rule = self.corrections.rule(request.speculation)
        generation = new_generation(request, sink, self.codec, self.info.max_context, rule, self.protected_ids)
        self._scheduler.submit(generation)
        return Handle(self._scheduler, generation)

    @property
    def observer(self) -> EngineObserver | None:
        """Called at every step; may be set at any time."""
        return self._scheduler.pool.reporter.observer

    @observer.setter
    def observer(self, observer: EngineObserver | None) -> None:
        self._scheduler.pool.reporter.observer = observer

    def status(self) -> EngineStatus:
        scheduler, prefixes = self._scheduler, self._scheduler.slots.prefixes
        return EngineStatus(
            running=scheduler.running,
            waiting=scheduler.waiting,
            kv_usage_ratio=scheduler.kv_usage,
            heartbeat_age=scheduler.pulse.age,
            alive=scheduler.alive,
            ready=self._ready and scheduler.accepting,
            free_places=scheduler.free_places,
            retry_after=scheduler.retry_after,
            preemptions=scheduler.pool.preemptions,
            drafting=self._drafting_status(),
            device_bytes=torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0,
            store=None if self.corrections is None else self.corrections.status,
            conversations=prefixes.conversations,
            conversation_rows=prefixes.conversation_rows,
            conversation_bytes=prefixes.conversation_bytes,
        )

    def _drafting_status(self) -> DraftingStatus:
        costs, states = self._decoder.costs, self._scheduler.drafter_states
        return DraftingStatus(
            sessions=len(states),
            automaton_nodes=sum(state.automaton_nodes for state in states),
            automaton_evictions=self._scheduler.rounds.evictions,
            session_rows=sum(state.copy_logit_rows for state in states),
            warm_rows=self._drafters.tenants.rows,
            prior_rows=0 if self._prior is None else self._prior.done,
            plain_seconds=0.0 if costs is None else costs.plain.step_seconds,
            step_seconds=() if costs is None else tuple(costs.curve.at(STEP_ROWS)),
        )

    def drain(self) -> None:
        self._scheduler.drain()

    def close(self, grace: float = 0.0) -> None:
        if self.corrections is not None:
            self.corrections.flush(0.0)  # start now: the process may be killed before the last flush is through
        self._scheduler.close(grace)
        if self._prior is not None:
            self._prior.close()
        if self.corrections is not None:
            self.corrections.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside ----------------------------------------------------------------------------------------------------------

    def _idle(self) -> bool:
        """Called by the worker when nothing runs; returns whether more is left to do."""
        if self._prior is None or self._prior.complete or not self._ready:
            return False
        return self._prior.advance(self._scheduler.slots.free) and not self._prior.complete

    def _prove(self) -> None:
        """Generate one token: the engine is ready once that worked, and no request waits for a compiler."""
        probe = GenerationRequest((0,), SamplingParams(seed=0), StopParams(1, ignore_eos=True), SpeculationParams("none"))
        try:
            self.generate(probe)
        except Exception as error:
            self.close()
            raise ModelLoadError(f"the model loads but cannot produce a token: {error}") from error
        self._ready = True


def _wants_prior(config: EngineConfig) -> bool:
    return config.prior_rows > 0 and (config.racer.policy == "auto" or config.drafter == "hybrid")


def _prior_rows(
    loaded: LoadedModel, config: EngineConfig, runtime: Runtime, measurements: Measurements | None
) -> PriorRows | None:
    if runtime.costs is None or not _wants_prior(config):
        return None
    start = loaded.codec.tokenizer.bos_token_id
    first = min(loaded.eos_ids, default=0) if start is None else start
    path = None if measurements is None else measurements.prior_path
    return PriorRows(runtime.probe, first, config.prior_rows, runtime.costs.curve, path)
