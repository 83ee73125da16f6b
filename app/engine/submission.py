"""From a request to a session of the worker: what can be refused is refused here, before anything is queued."""

from __future__ import annotations

import logging
from dataclasses import replace

from app.engine.config import EngineConfig
from app.engine.errors import ContextLengthExceeded, InvalidRequest
from app.engine.events import Event, EventSink
from app.engine.interface import ModelInfo
from app.engine.request import GenerationRequest
from app.engine.resolve import resolve
from app.engine.scheduler.worker import Worker
from app.engine.session import Session
from app.text.codec import TextCodec

logger = logging.getLogger(__name__)


class Handle:
    """A submitted generation."""

    def __init__(self, worker: Worker, session: Session) -> None:
        self._worker, self._session = worker, session

    def cancel(self) -> None:
        self._worker.cancel(self._session)


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


def new_session(request: GenerationRequest, sink: EventSink, codec: TextCodec, max_context: int) -> Session:
    """The session of a checked request."""
    speculation, wanted = request.speculation, request.stopping.max_tokens
    budget = 1 if speculation.drafter == "none" else speculation.max_nodes or 1
    limit = max_context - len(request.prompt_ids) if wanted is None else wanted
    return Session(request, _guarded(sink), codec, budget, limit)


def _guarded(sink: EventSink) -> EventSink:
    """A sink that raises harms nobody else."""

    def send(event: Event) -> None:
        try:
            sink(event)
        except Exception:
            logger.exception("an event could not be delivered")

    return send
