"""An engine without weights: seeded pseudo text at a set acceptance rate, behind the interface of the real one."""

from __future__ import annotations

import codecs
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, cast

from app.engine.errors import ContextLengthExceeded, EngineClosed, InvalidRequest, QueueFull
from app.engine.events import (
    Delta,
    EngineObserver,
    EventSink,
    Failed,
    Finished,
    FinishReason,
    SourceName,
    SpeculationStats,
    StepRecord,
)
from app.engine.interface import EngineStatus, ModelInfo
from app.engine.request import GenerationRequest
from app.text.codec import TextCodec
from app.text.errors import ChatTemplateError

BOS, EOS, TURN, END = 256, 257, 258, 259  # ids below are the bytes of UTF-8
SPECIAL_NAMES = {BOS: "<|bos|>", EOS: "<|eos|>", TURN: "<|turn|>", END: "<|end|>"}
WORDS = (
    "the",
    "tree",
    "draft",
    "token",
    "naïve",
    "東京",
    "👩‍👩‍👧",
    "def f(x):\n    return",
    "it's",
    "a , b !",
    "𝄞",
    "and",
    "so",
)
LONGEST_RUN = 6


class SyntheticCodec:
    """One id per byte and four special ids. chat_error: what the chat template answers to any messages."""

    vocab_size = 260
    eos_ids = frozenset({EOS})
    special_ids = frozenset(SPECIAL_NAMES)

    def __init__(self, chat_error: str | None = None, has_chat_template: bool = True) -> None:
        self.chat_error = chat_error
        self.has_chat_template = has_chat_template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return ([BOS] if add_special_tokens else []) + list(text.encode())

    def encode_chat(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None) -> list[int]:
        if self.chat_error is not None or not self.has_chat_template:
            raise ChatTemplateError(self.chat_error or "This model has no chat template; use /v1/completions.")
        ids = [BOS]
        for message in messages:
            calls = "".join(call["function"]["name"] for call in message.get("tool_calls", ()))
            ids += [TURN, *f"{message['role']}\n{message['content']}{calls}".encode(), END]
        return [*ids, TURN, *b"assistant\n"]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        parts = [bytes([i]) if i < BOS else b"" if skip_special_tokens else SPECIAL_NAMES[i].encode() for i in ids]
        return b"".join(parts).decode("utf-8", "replace")


class _Session:
    """One generation on the synthetic worker."""

    def __init__(self, request: GenerationRequest, sink: EventSink, engine: SyntheticEngine, number: int) -> None:
        self.request, self.sink, self.engine = request, sink, engine
        sampling = request.sampling
        drawn = 0 if sampling.temperature == 0.0 else sampling.seed if sampling.seed is not None else f"unseeded {number}"
        self.tokens = _pseudo_text(f"{drawn} {request.prompt_ids}", engine.answer_tokens)
        self.random = Random(f"{engine.seed} {number}")  # acceptance does not change the text
        self.drafter = request.speculation.drafter or engine.info.drafter
        self.nodes = 1 if self.drafter == "none" else request.speculation.max_nodes or engine.info.max_nodes
        room = engine.info.max_context - len(request.prompt_ids)
        self.budget = room if request.stopping.max_tokens is None else request.stopping.max_tokens
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.held = ""  # text not sent yet: it may be the beginning of a stop string
        self.emitted = 0
        self.reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.cancelled = False
        self.ended = False
        self.started = time.monotonic()
        self.drafted = self.accepted = self.steps = 0
        self.histogram: Counter[int] = Counter()
        self.sources: Counter[str] = Counter()

    def advance(self, run: int) -> tuple[int, Counter[str]]:
        """Emit up to run + 1 tokens, cut at the first end. Returns how many, and their sources."""
        ids: list[int] = []
        text = ""
        while len(ids) <= run and self.reason is None:
            token = next(self.tokens)
            ids.append(token)
            text += self._take(token)
        names: list[SourceName] = ["retrieval" if position % 2 else "copy_logit" for position in range(len(ids) - 1)]
        names.append("target")
        self.sources.update(names)
        self.sink(Delta(tuple(ids), text, tuple(names)))
        return len(ids), Counter(names)

    def finished(self, reason: FinishReason) -> Finished:
        depth = max(self.histogram, default=0)
        stats = SpeculationStats(
            drafter=self.drafter,
            verifier="exact",
            num_steps=self.steps,
            num_draft_tokens=self.drafted,
            num_accepted_tokens=self.accepted,
            emitted=self.emitted,
            acceptance_histogram=tuple(self.histogram[length] for length in range(depth + 1)),
            tokens_by_source=dict(self.sources),
        )
        rest = "" if isinstance(self.stop_reason, str) else self.held + self.decoder.decode(b"", final=True)
        return Finished(reason, self.stop_reason, rest, len(self.request.prompt_ids), self.emitted, stats)

    def _take(self, token: int) -> str:
        """Count one token; returns the text that can be shown now."""
        stopping = self.request.stopping
        self.emitted += 1
        if token == EOS and not stopping.ignore_eos:
            self.reason = "stop"
        elif token in stopping.stop_token_ids:
            self.reason, self.stop_reason = "stop", token
        else:
            self.held += self.decoder.decode(bytes([token])) if token < BOS else ""
            found = [(self.held.find(stop), stop) for stop in stopping.stop if stop in self.held]
            if found:
                start, self.stop_reason = min(found)
                self.reason = "stop"
                shown, self.held = self.held[:start], ""
                return shown
        if self.reason is None and self.emitted >= self.budget:
            self.reason = "length"
        shown, self.held = _split_held(self.held, stopping.stop)
        return shown


class SyntheticHandle:
    def __init__(self, engine: SyntheticEngine, session: _Session) -> None:
        self._engine, self._session = engine, session

    def cancel(self) -> None:
        self._session.cancelled = True
        self._engine.wake()


class SyntheticEngine:
    """Behaves as told.

    acceptance: chance that one more draft token is kept. answer_tokens: EOS comes after the word that reaches it. manual: each round waits
    for allow(). fail_at_step: that round (from 1) raises. step_seconds: pace of a round. ready, stuck: what status() says.
    """

    def __init__(
        self,
        *,
        acceptance: float = 0.6,
        answer_tokens: int = 40,
        max_context: int = 4096,
        max_running: int = 8,
        max_queued: int = 64,
        max_nodes: int = 24,
        manual: bool = False,
        fail_at_step: int | None = None,
        step_seconds: float = 0.0,
        name: str = "synthetic",
        seed: int = 0,
        codec: SyntheticCodec | None = None,
        observer: EngineObserver | None = None,
    ) -> None:
        self.acceptance, self.answer_tokens, self.seed = acceptance, answer_tokens, seed
        self.max_running, self.max_queued = max_running, max_queued
        self.manual, self.fail_at_step, self.step_seconds = manual, fail_at_step, step_seconds
        self.codec = cast(TextCodec, codec or SyntheticCodec())
        self.observer = observer
        self.ready, self.stuck = True, False
        self.requests: list[GenerationRequest] = []  # all that were ever queued, for tests to look at
        self.rounds = 0
        self.info = ModelInfo(
            name=name,
            architecture="Synthetic",
            dtype="float32",
            device="cpu",
            threads=1,
            parameters=0,
            vocab_size=self.codec.vocab_size,
            max_context=max_context,
            tree_attention=True,
            drafter="racer",
            verifier="exact",
            max_nodes=max_nodes,
        )
        self._waiting: deque[_Session] = deque()
        self._running: list[_Session] = []
        self._permits = 0
        self._draining = self._stopping = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="synthetic-worker", daemon=True)
        self._thread.start()

    # -- for tests -------------------------------------------------------------------------------------------------------

    def allow(self, rounds: int = 1_000_000) -> None:
        """Let a manual engine run so many more rounds."""
        with self._condition:
            self._permits += rounds
            self._condition.notify_all()

    def wake(self) -> None:
        with self._condition:
            self._condition.notify_all()

    # -- EngineInterface -------------------------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, sink: EventSink) -> SyntheticHandle:
        prompt, wanted = len(request.prompt_ids), request.stopping.max_tokens
        if prompt + (wanted or 1) > self.info.max_context:
            raise ContextLengthExceeded(prompt, wanted, self.info.max_context)
        nodes = request.speculation.max_nodes
        if nodes is not None and not 1 <= nodes <= self.info.max_nodes:
            raise InvalidRequest(f"max_nodes must lie in 1 to {self.info.max_nodes}.", "speculative.max_nodes")
        with self._condition:
            if self._draining or not self._thread.is_alive():
                raise EngineClosed
            if len(self._waiting) >= self.max_queued + max(0, self.max_running - len(self._running)):
                raise QueueFull
            session = _Session(request, sink, self, len(self.requests))
            self.requests.append(request)
            self._waiting.append(session)
            self._condition.notify_all()
        return SyntheticHandle(self, session)

    def status(self) -> EngineStatus:
        with self._condition:
            running, waiting = len(self._running), len(self._waiting)
        alive = self._thread.is_alive()
        return EngineStatus(
            running=running,
            waiting=waiting,
            kv_usage_ratio=running / self.max_running,
            heartbeat_age=1000.0 if self.stuck else 0.0,
            alive=alive,
            ready=self.ready and alive and not self._draining,
        )

    def drain(self) -> None:
        with self._condition:
            self._draining = True

    def close(self, grace: float = 0.0) -> None:
        self.drain()
        with self._condition:
            self._condition.wait_for(lambda: not self._running and not self._waiting, grace)
            self._stopping = True
            self._condition.notify_all()
        self._thread.join(10.0)

    # -- the worker ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(self._has_work)
                gone = [session for session in (*self._waiting, *self._running) if session.cancelled or self._stopping]
                stopping = self._stopping
            for session in gone:
                self._end(session, EngineClosed() if stopping and not session.cancelled else None)
            if stopping:
                return
            with self._condition:
                while self._waiting and len(self._running) < self.max_running:
                    self._running.append(self._waiting.popleft())
                running = list(self._running)
                if not running or (self.manual and not self._permits):
                    continue
                self._permits -= self.manual
            self._round(running)

    def _has_work(self) -> bool:
        if self._stopping or any(session.cancelled for session in (*self._waiting, *self._running)):
            return True
        admissible = bool(self._waiting) and len(self._running) < self.max_running
        return admissible or (bool(self._running) and not (self.manual and not self._permits))

    def _round(self, running: list[_Session]) -> None:
        self.rounds += 1
        if self.step_seconds:
            time.sleep(self.step_seconds)
        if self.rounds == self.fail_at_step:
            for session in running:
                self._end(session, RuntimeError("synthetic failure"))
            return
        stepping = [session for session in running if session.emitted]
        for session in running:
            if not session.emitted:
                self._observe("prefilled", len(session.request.prompt_ids))
                self._observe("first_token", time.monotonic() - session.started)
                session.advance(0)
        kept, sources, drafted = [], Counter[str](), 0
        for session in stepping:
            draft = min(session.nodes - 1, session.budget - session.emitted)
            run = 0
            while run < min(draft, LONGEST_RUN) and session.random.random() < self.acceptance:
                run += 1
            emitted, names = session.advance(run)
            self._observe("inter_token", 0.001, emitted)
            session.steps += 1
            session.drafted += draft
            session.accepted += emitted - 1
            session.histogram[emitted - 1] += 1
            kept.append(emitted - 1)
            sources += names
            drafted += draft
        if stepping:
            phases = {"forward": 0.001}
            self._observe("step", StepRecord(len(kept), drafted + len(kept), drafted, tuple(kept), dict(sources), phases))
        for session in running:
            if session.reason is not None:
                self._end(session)

    def _end(self, session: _Session, error: Exception | None = None) -> None:
        with self._condition:
            if session.ended:
                return
            session.ended = True
            if session in self._running:
                self._running.remove(session)
            else:
                self._waiting.remove(session)
            self._condition.notify_all()
        reason = session.reason or "cancelled"
        seconds = time.monotonic() - session.started
        named = "error" if error is not None else reason
        self._observe("finished", named, seconds, len(session.request.prompt_ids), session.emitted)
        session.sink(session.finished(reason) if error is None else Failed(error))

    def _observe(self, what: str, *arguments: object) -> None:
        if self.observer is not None:
            getattr(self.observer, what)(*arguments)


def _pseudo_text(key: str, answer_tokens: int) -> Iterator[int]:
    """Bytes of words drawn by key; one EOS after the word that reaches answer_tokens, then on without end."""
    random = Random(key)
    count, ended = 0, False
    while True:
        word = f"{random.choice(WORDS)} ".encode()
        yield from word
        count += len(word)
        if count >= answer_tokens and not ended:
            ended = True
            yield EOS


def _split_held(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """What can be shown, and the longest tail that may grow into a stop string."""
    longest = max(map(len, stops), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops):
            return text[:-size], text[-size:]
    return text, ""
