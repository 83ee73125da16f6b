"""Prompts are read first come, first served, as many as one chunk has room for between two steps."""

from __future__ import annotations

import pytest

from app.engine.request import GenerationRequest, SamplingParams, StopParams
from app.engine.session import Session
from app.engine.submission import checked, new_generation
from tests.tiny import tiny_engine

CHUNK = 64


def unread(session: Session) -> int:
    return 0 if session.decoding else len(session.request.prompt_ids) - session.cache.length


@pytest.mark.parametrize(
    ("lengths", "rounds"),
    [
        ([10, 12, 20, 5], [[0] * 4]),
        ([10, 60, 5], [[0, 60, 5], [0, 0, 5], [0, 0, 0]]),  # the 5 would have had room in the first round
        ([150, 5, 90], [[86, 5, 90], [22, 5, 90], [0, 0, 90], [0, 0, 26], [0, 0, 0]]),
        ([64, 1], [[0, 1], [0, 0]]),
        ([1] * 6, [[0, 0, 0, 0, 1, 1], [0] * 6]),  # a forward costs something before it reads a token
    ],
)
def test_a_round_reads_one_chunk_of_the_oldest_and_whole_prompts_after_it(lengths: list[int], rounds: list[list[int]]) -> None:
    with tiny_engine(eos=frozenset(), prefill_chunk=CHUNK) as engine:
        worker = engine._scheduler
    # its thread has ended: the rounds are made by hand
    for length in lengths:
        request = GenerationRequest(tuple(10 + place % 80 for place in range(length)), SamplingParams(0.0), StopParams(4))
        session = new_generation(
            checked(request, engine.info, engine.config), lambda _: None, engine.codec, 256, None, frozenset()
        )
        worker.pool.waiting.append(session)
    worker.pool.admit()
    sessions = list(worker.pool.running)
    for expected in rounds:
        worker.rounds.prefill()
        assert [unread(session) for session in sessions] == expected


def test_a_prompt_that_fails_ends_alone_and_the_round_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with tiny_engine(eos=frozenset(), prefill_chunk=CHUNK) as engine:
        advance = engine._decoder.prefill.advance

        def failing(session: Session) -> None:
            if len(session.request.prompt_ids) == 7:
                raise RuntimeError("made to fail")
            advance(session)

        monkeypatch.setattr(engine._decoder.prefill, "advance", failing)
        asked = [GenerationRequest(tuple(range(10, 10 + n)), SamplingParams(0.0), StopParams(4)) for n in (5, 6, 8)]
        alone = [engine.generate(one).token_ids for one in asked]
        heard: list[object] = []
        engine.submit(GenerationRequest(tuple(range(10, 17)), SamplingParams(0.0), StopParams(4)), heard.append)
        assert [done.token_ids for done in engine.generate_all(asked)] == alone
        assert [type(event).__name__ for event in heard] == ["Failed"]
