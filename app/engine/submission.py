"""From a request to a generation of the scheduler: what can be refused is refused here, before anything is queued."""

from __future__ import annotations

import logging
from dataclasses import replace

from app.engine.config import EngineConfig
from app.engine.errors import ContextLengthExceeded, InvalidRequest
from app.engine.events import Event, EventSink
from app.engine.generation import Generation
from app.engine.interface import ModelInfo
from app.engine.request import GenerationRequest
from app.engine.resolve import resolve
from app.engine.scheduler.scheduler import Scheduler
from app.text.codec import TextCodec
from csd.gate import Rule

logger = logging.getLogger(__name__)


class Handle:
    """A submitted generation."""

    def __init__(self, scheduler: Scheduler, generation: Generation) -> None:
        self._scheduler, self._generation = scheduler, generation

    def cancel(self) -> None:
        self._scheduler.cancel(self._generation)


def checked(request: GenerationRequest, info: ModelInfo, config: EngineConfig) -> GenerationRequest:
    """The request with every choice of speculation made. Raises InvalidRequest, ContextLengthExceeded."""
    prompt, room = len(request.prompt_ids), info.max_context
    if prompt == 0:
        raise InvalidRequest("The prompt is empty.", "prompt")
    wanted = request.stopping.max_tokens
    if wanted is not None and wanted < 1:
        raise InvalidRequest("max_tokens must be at least 1.", "max_tokens")
    if prompt + (wanted or 1) > room:
        raise ContextLengthExceeded(prompt, wanted, room)
    if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= info.vocab_size:
        raise InvalidRequest(f"Token ids must lie in 0 to {info.vocab_size - 1}.", "prompt")
    speculation = resolve(
        request.speculation,
        info,
        drafter=config.drafter,
        verifier=config.verifier,
        policy=config.racer.policy,
        gamma=config.gamma,
    )
    return replace(request, speculation=speculation)


def new_generation(
    request: GenerationRequest,
    sink: EventSink,
    codec: TextCodec,
    max_context: int,
    csd_rule: Rule | None = None,
    protected: frozenset[int] = frozenset(),
) -> Generation:
    """The generation of a checked request. csd_rule: None for the verifier exact. protected: see Generation."""
    speculation, wanted = request.speculation, request.stopping.max_tokens
    budget = 1 if speculation.drafter == "none" else speculation.max_nodes or 1
    limit = max_context - len(request.prompt_ids) if wanted is None else wanted
    protected = protected.union(request.stopping.stop_token_ids)
    return Generation(request, _guarded(sink), codec, budget, limit, csd_rule, protected)


def _guarded(sink: EventSink) -> EventSink:
    """A sink that raises harms nobody else."""

    def send(event: Event) -> None:
        try:
            sink(event)
        except Exception:
            logger.exception("an event could not be delivered")

    return send
