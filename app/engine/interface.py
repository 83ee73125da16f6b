"""The engine as its users see it: the API, the benchmark and the synthetic engine of the tests share this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.engine.correction import Corrections, StoreStatus
from app.engine.events import EngineObserver, EventSink
from app.engine.request import GenerationRequest
from app.text.codec import TextCodec

STEP_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # rows of a step whose cost is reported


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about the loaded target."""

    name: str  # the id clients use
    architecture: str
    dtype: str
    device: str
    threads: int
    parameters: int
    vocab_size: int  # ids below this are valid
    max_context: int  # tokens, prompt and answer together
    tree_attention: bool  # False: the self-check failed and the engine decodes plainly
    drafter: str  # server default
    verifier: str
    max_nodes: int  # the largest budget a request may ask for, and the default
    draft: str | None = None  # name of the draft model, where one is loaded
    csd: bool = False  # whether requests may ask for the csd verifier


@dataclass(frozen=True, slots=True)
class DraftingStatus:
    """What drafting holds and costs. Rows are copy-logit rows: of the sessions, of the warm layers, and the prior ones."""

    sessions: int = 0  # running or kept between the turns of a conversation, that have a drafter
    automaton_nodes: int = 0
    automaton_evictions: int = 0  # ever
    session_rows: int = 0
    warm_rows: int = 0
    prior_rows: int = 0
    plain_seconds: float = 0.0  # of a plain step of one session
    step_seconds: tuple[float, ...] = ()  # T(n) at STEP_ROWS; empty where only plain decoding runs


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot, cheap to take from any thread."""

    running: int
    waiting: int
    kv_usage_ratio: float  # 0..1 of the KV budget that running sessions hold
    heartbeat_age: float  # seconds since the worker began or ended a forward; while idle it beats at least once a second
    alive: bool  # the worker thread runs
    ready: bool  # the model produced a token, and the engine accepts work
    free_places: int  # generations that could be queued now
    retry_after: int  # seconds until the queue of now will have had its turn, estimated
    preemptions: int = 0  # ever: generations that gave their rows of KV up for older ones, and had their text read again
    conversations: int = 0  # kept between their turns
    conversation_rows: int = 0  # rows of KV that they hold
    conversation_bytes: int = 0  # of KV and drafting state that they hold
    drafting: DraftingStatus = DraftingStatus()
    device_bytes: int = 0  # of an accelerator's memory that this process holds
    store: StoreStatus | None = None  # None where csd is not allowed: there is no memory then


class GenerationHandle(Protocol):
    """A submitted generation."""

    def cancel(self) -> None:
        """Drop it: idempotent, from any thread. Freed within one step; the last event is Finished("cancelled")."""


class EngineInterface(Protocol):
    info: ModelInfo
    codec: TextCodec
    observer: EngineObserver | None

    @property
    def corrections(self) -> Corrections | None:
        """The correction memory; None where csd is not allowed."""

    def submit(self, request: GenerationRequest, sink: EventSink) -> GenerationHandle:
        """Queue a generation; events arrive on the worker thread, the last is Finished or Failed.

        Raises InvalidRequest, ContextLengthExceeded, QueueFull, EngineClosed before anything is queued.
        """

    def status(self) -> EngineStatus: ...

    def drain(self) -> None:
        """Refuse new work (EngineClosed) from now on; what runs goes on."""

    def close(self, grace: float = 0.0) -> None:
        """Drain, wait up to grace seconds for running work, fail what is left with EngineClosed, join the worker."""
