"""What a program calls: whole answers and streams, on top of an engine's `submit`."""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from app.engine.errors import EngineClosed
from app.engine.events import Delta, Event, EventSink, Failed, Finished
from app.engine.interface import GenerationHandle
from app.engine.request import GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.text.codec import TextCodec


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    finished: Finished


class ProgramCalls(ABC):
    """`stream`, `generate` and `generate_all` of anything that can submit a request."""

    codec: TextCodec

    @abstractmethod
    def submit(self, request: GenerationRequest, sink: EventSink) -> GenerationHandle:
        """Queue a generation; see EngineInterface."""

    def stream(self, request: GenerationRequest) -> Generator[Delta | Finished]:
        """Deltas and then Finished; a generation that fails raises. Leaving the iterator cancels it."""
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        handle = self.submit(request, events.put)
        try:
            yield from _drain(events)
        finally:
            handle.cancel()

    def generate(
        self,
        prompt: str | Sequence[int] | GenerationRequest,
        *,
        sampling: SamplingParams | None = None,
        stopping: StopParams | None = None,
        speculation: SpeculationParams | None = None,
    ) -> Completion:
        """A whole answer to a text, to token ids, or to a request. Sampling defaults to greedy."""
        if isinstance(prompt, GenerationRequest):
            request = prompt
        else:
            ids = self.codec.encode(prompt) if isinstance(prompt, str) else prompt
            request = GenerationRequest(
                tuple(ids),
                sampling or SamplingParams(temperature=0.0),
                stopping or StopParams(),
                speculation or SpeculationParams(),
                continue_text=True,
            )
        return _collect(self.stream(request))

    def generate_all(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Answers to many requests, run together."""
        streams: list[queue.SimpleQueue[Event]] = [queue.SimpleQueue() for _ in requests]
        handles = [self.submit(request, events.put) for request, events in zip(requests, streams, strict=True)]
        try:
            return [_collect(_drain(events)) for events in streams]
        finally:
            for handle in handles:
                handle.cancel()


def _collect(events: Iterator[Delta | Finished]) -> Completion:
    text: list[str] = []
    tokens: list[int] = []
    sources: list[str] = []
    for event in events:
        text.append(event.text)
        if isinstance(event, Finished):
            if event.reason == "cancelled":
                raise EngineClosed("The generation was cancelled.")
            return Completion("".join(text), tuple(tokens), tuple(sources), event)
        tokens.extend(event.token_ids)
        sources.extend(event.sources)
    raise EngineClosed


def _drain(events: queue.SimpleQueue[Event]) -> Iterator[Delta | Finished]:
    while True:
        event = events.get()
        if isinstance(event, Failed):
            raise event.error
        yield event
        if isinstance(event, Finished):
            return
