"""What a caller asks the engine for: plain frozen records, checked by the caller, never changed by the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from racer.drafter import Policy

DrafterName = Literal["racer", "draft_model", "hybrid", "none"]
VerifierName = Literal["exact", "csd"]
RuleName = Literal["both", "ocm", "scg", "static"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen from a row of logits.

    temperature 0 is greedy; top_k 0 and min_p 0.0 and top_p 1.0 switch the filter off. seed None lets the engine draw one.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class StopParams:
    """When a generation ends. max_tokens None means as far as the context reaches."""

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Per-request choice of drafting and acceptance; None takes the server's default.

    policy: see racer.factory; hybrid takes auto alone. fixed_budget: verify max_nodes at every step, instead of as many as
    pay. gamma: tokens that the draft model writes ahead under a fixed budget.
    lambda_, tau, rule: of the verifier csd (app.engine.correction).
    """

    drafter: DrafterName | None = None
    verifier: VerifierName | None = None
    max_nodes: int | None = None
    policy: Policy | None = None
    fixed_budget: bool = False
    gamma: int | None = None
    trace: bool = False
    lambda_: float | None = None
    tau: float | None = None
    rule: RuleName | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate.

    prompt_ids: token ids, at least one. tenant: scope of shared state (a digest of the API key, or "").
    continue_text: the answer continues the prompt's text (completions), so the first token keeps its leading space.
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stopping: StopParams = field(default_factory=StopParams)
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    tenant: str = ""
    continue_text: bool = False
