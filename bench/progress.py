"""Progress on standard error: a bar on a terminal, a line per question elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.modes import PLAIN
from bench.result import Result


def minutes(seconds: float) -> str:
    """`2:05`."""
    whole, rest = divmod(round(seconds), 60)
    return f"{whole}:{rest:02d}"


class Bar:
    """A bar on a terminal, nothing elsewhere. total: how many there are; done: how many were there at the start."""

    def __init__(self, total: int, done: int = 0) -> None:
        self._total, self._done = total, done
        console = Console(stderr=True)
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Progress(TextColumn("{task.description}"), *columns, console=console)
            self._task = self._bar.add_task("starting", total=total, completed=done)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, text: str) -> bool:
        """One more is done; false where no bar shows it."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, description=text)
        return self._bar is not None

    def line(self, text: str) -> None:
        """A line in place of a bar."""
        sys.stderr.write(f"[{self._done}/{self._total}] {text}\n")
        sys.stderr.flush()


class Reporter(Bar):
    """Hears of results of the offline benchmark. modes: results of a question."""

    def __init__(self, total: int, done: int, modes: int) -> None:
        super().__init__(total, done)
        self._modes = modes
        self._question: list[Result] = []

    def __call__(self, result: Result) -> None:
        if self.advance(f"{result.question} {result.mode}"):
            return
        if self._question and (self._question[0].question, self._question[0].turn) != (result.question, result.turn):
            self._question = []
        self._question.append(result)
        if self._done % self._modes == 0:  # also where some modes of the question ran before an interrupt
            self.line(f"{result.question}: {self._rates()} tokens/s")

    def _rates(self) -> str:
        rates = {one.mode: len(one.measured.tokens) / one.measured.seconds for one in self._question}
        ordered = sorted(rates.items(), key=lambda entry: entry[0] != PLAIN)
        return ", ".join(f"{mode} {rate:.1f}" for mode, rate in ordered)
