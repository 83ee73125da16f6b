"""What a caller asks of the engine: frozen records that the engine never changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from racer.drafter import Policy

DrafterName = Literal["racer", "draft_model", "hybrid", "none"]
VerifierName = Literal["exact", "csd"]
NEED_DRAFT = ("draft_model", "hybrid")  # drafters that need a draft model
RuleName = Literal["both", "ocm", "scg", "static"]


class Matcher(Protocol):
    """The position of one answer in its grammar."""

    def allowed(self, path: Sequence[int]) -> npt.NDArray[np.bool_]:
        """[vocabulary]: the tokens that may follow the accepted ones and then `path`. The path is not accepted by this."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Move on past these tokens, which are emitted."""

    def forced(self) -> list[int]:
        """The tokens that must follow the accepted ones, up to the first place with a choice."""


class Grammar(Protocol):
    """What an answer must match."""

    def matcher(self) -> Matcher: ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen from a row of logits.

    temperature 0 is greedy; top_k 0, min_p 0.0 and top_p 1.0 switch the filter off. seed None: the engine draws one.
    presence_penalty and frequency_penalty count tokens of the answer, repetition_penalty (1.0: off) those of the prompt too.
    logit_bias: (token id, what is added to its logit). See app.engine.sampling.logits_processor.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StopParams:
    """When a generation ends. max_tokens None: at the end of the context.

    min_tokens: the first min_tokens tokens neither end the answer nor count for a stop string.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Per-request choice of drafting and acceptance; None takes the server's default.

    policy: see racer.factory; hybrid allows only auto. fixed_budget: verify max_nodes at every step, instead of as many as are
    worth their cost. gamma: tokens that the draft model drafts under a fixed budget. trace: report the verified trees.
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
    logprobs: report the log-probability of each emitted token and of the `logprobs` likeliest ones; None: of none.
    prompt_logprobs: report it of each prompt token too. grammar: what the answer must match.
    group: any object that requests of one prompt share. The prompt is read once for those that run or wait together, unless
    others need the KV rows meanwhile.
    conversation: name, within the tenant, under which the state is kept for a later request that continues this text.
    arrived_at: when its first byte arrived, by time.monotonic(), for measured times; None: when it is submitted.
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stopping: StopParams = field(default_factory=StopParams)
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    tenant: str = ""
    continue_text: bool = False
    logprobs: int | None = None
    prompt_logprobs: bool = False
    grammar: Grammar | None = None
    group: object | None = None
    conversation: str | None = None
    arrived_at: float | None = field(default=None, compare=False)
