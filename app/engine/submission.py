"""Turns a request into a generation of the scheduler. Whatever can be refused is refused here, before it is queued."""

from __future__ import annotations

import logging
from dataclasses import replace

from app.engine.config import EngineConfig
from app.engine.errors import ContextLengthExceeded, InvalidRequest
from app.engine.events import Event, EventSink
from app.engine.generation import Generation
from app.engine.interface import ModelInfo
from app.engine.request import NEED_DRAFT, DrafterName, GenerationRequest, SpeculationParams, VerifierName
from app.engine.scheduler.scheduler import Scheduler
from app.text.codec import TextCodec
from csd.gate import Rule
from racer.drafter import Policy

logger = logging.getLogger(__name__)


class Handle:
    """A submitted generation."""

    def __init__(self, scheduler: Scheduler, generation: Generation) -> None:
        self._scheduler, self._generation = scheduler, generation

    def cancel(self) -> None:
        self._scheduler.cancel(self._generation)


def checked(request: GenerationRequest, info: ModelInfo, config: EngineConfig) -> GenerationRequest:
    """The request with the server's defaults filled in. Raises InvalidRequest, ContextLengthExceeded."""
    prompt, context = len(request.prompt_ids), info.max_context
    if prompt == 0:
        raise InvalidRequest("The prompt is empty.", "prompt")
    wanted = request.stopping.max_tokens
    if wanted is not None and wanted < 1:
        raise InvalidRequest("max_tokens must be at least 1.", "max_tokens")
    if prompt + (wanted or 1) > context:
        raise ContextLengthExceeded(prompt, wanted, context)
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
    """The sink, except that what it raises is only logged, so that other generations go on."""

    def send(event: Event) -> None:
        try:
            sink(event)
        except Exception:
            logger.exception("an event could not be delivered")

    return send


def resolve(
    asked: SpeculationParams, info: ModelInfo, *, drafter: DrafterName, verifier: VerifierName, policy: Policy, gamma: int
) -> SpeculationParams:
    """Fill in the server's defaults; without tree attention nothing is drafted. Raises InvalidRequest."""
    chosen: DrafterName = asked.drafter or drafter
    if not info.tree_attention:
        chosen = "none"
    nodes = info.max_nodes if asked.max_nodes is None else asked.max_nodes
    if not 1 <= nodes <= info.max_nodes:
        raise InvalidRequest(f"`speculative.max_nodes` must be from 1 to {info.max_nodes}.", "speculative.max_nodes")
    if chosen in NEED_DRAFT and info.draft is None:
        raise InvalidRequest(f"The drafter {chosen} needs a draft model, and none is loaded.", "speculative.drafter")
    if chosen == "hybrid" and asked.policy not in (None, "auto"):
        raise InvalidRequest("The drafter hybrid takes the policy auto alone.", "speculative.policy")
    length = gamma if asked.gamma is None else asked.gamma
    if length < 1:
        raise InvalidRequest("gamma must be at least 1.", "speculative.gamma")
    return replace(
        asked,
        drafter=chosen,
        verifier=_verifier(asked, info, verifier),
        max_nodes=nodes,
        policy="auto" if chosen == "hybrid" else asked.policy or policy,
        gamma=length,
    )


def _verifier(asked: SpeculationParams, info: ModelInfo, default: VerifierName) -> VerifierName:
    """The verifier to use; exact without tree attention. Raises InvalidRequest for csd where it is not allowed."""
    verifier: VerifierName = asked.verifier or default
    if not info.tree_attention:
        return "exact"
    if verifier == "csd" and not info.csd:
        raise InvalidRequest("This server does not allow the verifier csd.", "speculative.verifier")
    for name, value in (("lambda", asked.lambda_), ("tau", asked.tau), ("rule", asked.rule)):
        if value is not None and verifier != "csd":
            raise InvalidRequest(f"{name} needs the verifier csd.", f"speculative.{name}")
    return verifier
