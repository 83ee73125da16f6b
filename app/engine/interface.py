"""The engine as the API sees it; the synthetic engine of the tests implements the same."""

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
    tree_attention: bool  # False: the self-check failed, and the engine decodes plainly
    drafter: str  # server default
    verifier: str
    max_nodes: int  # the largest budget a request may ask for, and the default
    draft: str | None = None  # name of the draft model, where one is loaded
    csd: bool = False  # whether requests may ask for the csd verifier


@dataclass(frozen=True, slots=True)
class DraftingStatus:
    """What drafting keeps in memory, and what steps cost. Rows: copy-logit rows of sessions and warm layers, and prior rows."""

    sessions: int = 0  # with a drafter, running or kept between the turns of a conversation
    automaton_nodes: int = 0
    automaton_evictions: int = 0  # since the start
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
    kv_usage_ratio: float  # 0..1: share of the KV budget that running sessions hold
    heartbeat_age: float  # seconds since the worker began or ended a forward; while idle it beats at least once a second
    alive: bool  # the worker thread runs
    ready: bool  # the model produced a token, and the engine accepts work
    free_places: int  # generations that could be queued now
    retry_after: int  # seconds until those that wait now will have had their turn, estimated
    preemptions: int = 0  # since the start: generations that gave up their KV for older ones, and read their text again
    conversations: int = 0  # kept between their turns
    conversation_rows: int = 0  # KV rows they hold
    conversation_bytes: int = 0  # of KV and drafting state they hold
    drafting: DraftingStatus = DraftingStatus()
    device_bytes: int = 0  # of an accelerator's memory that this process holds
    store: StoreStatus | None = None  # None where csd is not allowed


class GenerationHandle(Protocol):
    """A submitted generation."""

    def cancel(self) -> None:
        """End it within one step; its last event is Finished("cancelled"). Idempotent, from any thread."""


class EngineInterface(Protocol):
    info: ModelInfo
    codec: TextCodec
    observer: EngineObserver | None

    @property
    def corrections(self) -> Corrections | None:
        """The correction memory; None where csd is not allowed."""

    def submit(self, request: GenerationRequest, sink: EventSink) -> GenerationHandle:
        """Queue a generation. Its events are delivered on the worker thread; the last is Finished or Failed.

        Raises InvalidRequest, ContextLengthExceeded, QueueFull, EngineClosed before anything is queued.
        """

    def status(self) -> EngineStatus: ...

    def drain(self) -> None:
        """Refuse new work (EngineClosed) from now on; running work continues."""

    def close(self, grace: float = 0.0) -> None:
        """Drain, wait up to `grace` seconds for running work, fail the rest with EngineClosed, join the worker."""
