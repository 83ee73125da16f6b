"""An engine whose worker thread has ended, so that a test runs its rounds itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from app.engine.engine import Engine
from app.engine.generation import Generation
from app.engine.request import GenerationRequest
from app.engine.session import Session
from app.engine.submission import checked, new_generation
from app.text.codec import TextCodec
from racer.drafter import NullDrafter
from tests.engine.drafting import FLAT
from tests.tiny import tiny_engine


@contextmanager
def by_hand(**more: Any) -> Iterator[Engine]:
    with tiny_engine(eos=frozenset(), prefill_chunk=16, max_nodes=8, cost_curve=FLAT, **more) as engine:
        pass
    engine._scheduler._draining = False
    yield engine


def queued(engine: Engine, request: GenerationRequest, sink: Any = lambda _: None) -> Generation:
    generation = new_generation(checked(request, engine.info, engine.config), sink, engine.codec, engine.info.max_context)
    engine._scheduler.pool.waiting.append(generation)
    return generation


def session_of(engine: Engine, generation: Generation) -> Session:
    """The session in which it runs."""
    (session,) = (session for session in engine._scheduler.pool.running if session.generation is generation)
    return session


def lone_session(
    request: GenerationRequest, codec: TextCodec, budget: int, limit: int, sink: Any = lambda _: None, drafter: Any = None
) -> Session:
    """A session without an engine."""
    cache: Any = SimpleNamespace(capacity=0, length=0)
    return Session(Generation(request, sink, codec, budget, limit), cache, drafter or NullDrafter())


def rounds(engine: Engine, n: int) -> None:
    for _ in range(n):
        engine._scheduler.pool.admit()
        engine._scheduler.rounds.prefill()
        engine._scheduler.rounds.decode()
