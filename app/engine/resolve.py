"""What a request asks of speculation, with the server's defaults filled in and what cannot be refused."""

from __future__ import annotations

from dataclasses import replace

from app.engine.errors import InvalidRequest
from app.engine.interface import ModelInfo
from app.engine.request import NEED_DRAFT, DrafterName, SpeculationParams, VerifierName
from racer.drafter import Policy


def resolve(
    asked: SpeculationParams, info: ModelInfo, *, drafter: DrafterName, verifier: VerifierName, policy: Policy, gamma: int
) -> SpeculationParams:
    """Fill the server's defaults in; a model without tree attention drafts nothing. Raises InvalidRequest."""
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
    """Exact wherever nothing else is asked for and allowed."""
    verifier: VerifierName = asked.verifier or default
    if not info.tree_attention:
        return "exact"
    if verifier == "csd" and not info.csd:
        raise InvalidRequest("This server does not allow the verifier csd.", "speculative.verifier")
    for name, value in (("lambda", asked.lambda_), ("tau", asked.tau), ("rule", asked.rule)):
        if value is not None and verifier != "csd":
            raise InvalidRequest(f"{name} needs the verifier csd.", f"speculative.{name}")
    return verifier
