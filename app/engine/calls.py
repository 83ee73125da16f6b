"""Streams and whole answers as a Python program wants them, on top of an engine's `submit`."""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from app.engine.errors import EngineClosed
from app.engine.events import Delta, Event, EventSink, Failed, Finished
from app.engine.interface import GenerationHandle
from app.engine.request import GenerationRequest

Submit = Callable[[GenerationRequest, EventSink], GenerationHandle]


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    finished: Finished


def stream(submit: Submit, request: GenerationRequest) -> Generator[Delta | Finished]:
    """Yields Deltas and then Finished; raises where the generation fails. Closing the iterator cancels it."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    handle = submit(request, events.put)
    try:
        yield from _drain(events)
    finally:
        handle.cancel()


def complete_all(submit: Submit, requests: Sequence[GenerationRequest]) -> list[Completion]:
    """Answers to many requests that run together."""
    streams: list[queue.SimpleQueue[Event]] = [queue.SimpleQueue() for _ in requests]
    handles = [submit(request, events.put) for request, events in zip(requests, streams, strict=True)]
    try:
        return [collect(_drain(events)) for events in streams]
    finally:
        for handle in handles:
            handle.cancel()


def collect(events: Iterator[Delta | Finished]) -> Completion:
    """The whole answer of a stream. Raises EngineClosed where it was cancelled."""
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
