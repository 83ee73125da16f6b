"""What is said while prior rows are worked out."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from app.engine.engine import Engine
from bench.prepare import prepare


class Working:
    """Stands in for an engine's instruments: reports each number of rows, and whether all are done at the end."""

    def __init__(self, known: range, wanted: int, ends: bool = True) -> None:
        self.known, self.wanted, self.ends = known, wanted, ends

    def settle(self, timeout: float | None = None, hear: Callable[[int, int], None] | None = None) -> bool:
        assert hear is not None
        for done in self.known:
            hear(done, self.wanted)
        return self.ends


def said(capsys: pytest.CaptureFixture[str], *given: object) -> list[str]:
    prepare(cast("Engine", SimpleNamespace(instruments=Working(*given))))  # type: ignore[arg-type]
    return capsys.readouterr().err.splitlines()


def test_each_tenth_is_told_with_the_time_that_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, range(250, 1000), 1000)
    assert lines[0] == "prior rows: 250 of 1000 known; --prior-rows asks for fewer, 0 for none; Ctrl-C keeps what is done"
    assert [line.split(",")[0] for line in lines[1:]] == [f"prior rows: {done} of 1000" for done in range(300, 1000, 100)]
    assert all(line.endswith("left") for line in lines[1:])


def test_what_is_there_already_takes_no_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, range(0), 1000) == []


def test_work_that_was_given_up_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, range(0), 1000, False) == ["the engine gave up its work on prior rows; what it has is used"]
