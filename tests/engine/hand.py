"""An engine whose worker thread has ended, so that a test makes the rounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app.engine.engine import Engine
from app.engine.request import GenerationRequest
from app.engine.session import Session
from app.engine.submission import checked, new_session
from tests.engine.drafting import FLAT
from tests.tiny import tiny_engine


@contextmanager
def by_hand(**more: Any) -> Iterator[Engine]:
    with tiny_engine(eos=frozenset(), prefill_chunk=16, max_nodes=8, cost_curve=FLAT, **more) as engine:
        pass
    engine._worker._draining = False
    yield engine


def queued(engine: Engine, request: GenerationRequest, sink: Any = lambda _: None) -> Session:
    session = new_session(checked(request, engine.info, engine.config), sink, engine.codec, engine.info.max_context)
    engine._worker._waiting.append(session)
    return session


def rounds(engine: Engine, n: int) -> None:
    for _ in range(n):
        engine._worker._admit()
        engine._worker._prefill_round()
        engine._worker._decode_round()
