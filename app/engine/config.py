"""How an engine serves."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.engine.correction import CsdConfig
from app.engine.errors import ModelLoadError
from app.engine.request import NEED_DRAFT, DrafterName, VerifierName
from racer.drafter import RacerConfig


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine serves; the API's settings carry the same names."""

    max_context: int | None = None  # tokens; None: what the model allows and the KV budget holds
    max_running: int = 8
    max_queued: int = 64
    drafter: DrafterName = "racer"
    max_nodes: int = 64
    gamma: int = 6  # tokens that the draft model drafts where a request fixes its budget
    prefill_chunk: int = 256
    warm_start: bool = True
    kv_memory_fraction: float = 0.3  # of the memory that is free after loading
    self_check: bool = True
    prior_rows: int = 32_768  # tokens whose successors are computed while idle; 0: none
    cost_curve: tuple[tuple[int, float], ...] = ()  # (rows, seconds) in place of a measurement; never corrected
    draft_curve: tuple[tuple[int, float], ...] = ()  # the same for the draft model
    max_failures: int = 5  # failures of the model in a row, after which the engine gives up
    racer: RacerConfig = field(default_factory=RacerConfig)
    verifier: VerifierName = "exact"
    csd: CsdConfig = field(default_factory=CsdConfig)
    max_conversations: int = 64  # kept between their turns
    conversation_memory: int = 1 << 30  # bytes of KV and of drafting state they may take together
    conversation_idle: float = 1800.0  # seconds after which one that is not continued is dropped


def check_drafter(config: EngineConfig, drafts: bool) -> None:
    """Raise ModelLoadError for a drafter that cannot work. drafts: whether there is a draft model."""
    if config.drafter in NEED_DRAFT and not drafts:
        raise ModelLoadError(f"The drafter {config.drafter} needs a draft model: name one (--draft, RACER_DRAFT).")
    if config.gamma < 1:
        raise ModelLoadError("gamma must be at least 1.")
