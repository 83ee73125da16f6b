"""The terminal of `racer-csd chat`: reads lines, prints answers token by token in the colour of their source."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import types
from collections.abc import Iterator

from rich.console import Console
from rich.style import Style
from rich.text import Text

from app.chat.answers import AnswerSource, Ask
from app.chat.dialogue import Dialogue, Piece, Quit, TurnEnd
from app.engine.errors import EngineError

PROMPT = "> "
STYLES: dict[str, str] = {
    "retrieval": "green",
    "copy_logit": "cyan",
    "draft_model": "magenta",
    "grammar": "yellow",
    "target": "default",
}
LEGEND = ("retrieval", "copy_logit", "draft_model", "target")  # what can come in a chat
CONTROLS: dict[int, str | None] = dict.fromkeys((*range(9), *range(11, 32), 127, *range(128, 160)), "\ufffd") | {13: None}


class Terminal:
    """Answers on standard output; everything else on standard error, so that a pipe gets answers alone."""

    def __init__(self, ask: Ask, dialogue: Dialogue) -> None:
        self._ask = ask
        self._dialogue = dialogue
        self._out = Console(highlight=False, markup=False)
        self._notes = Console(stderr=True, highlight=False, markup=False)
        self._interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._reading = self._stop_asked = False
        self._current: AnswerSource | None = None
        if self._interactive:
            with contextlib.suppress(ImportError):  # not everywhere; it gives input() a history and arrow keys
                import readline  # noqa: F401, PLC0415

    def greet(self, model: str) -> None:
        """The model and the legend of the colours, where colours or underlines are shown."""
        if not self._interactive:
            return
        self._note(f"{model}. /help lists the commands.")
        legend = Text()
        for source in LEGEND:
            legend.append(source, _style(source)).append("  ")
        self._notes.print(legend.append("rescued", _style("target", rescued=True)))

    def run(self) -> int:
        """Until Ctrl-D, /quit or the end of the input; returns the exit code."""
        with self._interrupts():
            while True:
                try:
                    line = self._read()
                except EOFError:
                    break
                except KeyboardInterrupt:
                    if not self._interactive:
                        raise
                    self._note("\nCtrl-D or /quit ends.")
                    continue
                try:
                    if line.startswith("/"):
                        self._note(self._dialogue.command(line))
                    elif line:
                        self._answer(line)
                except Quit:
                    return 0
        if self._interactive:
            self._note("")
        return 0

    def _read(self) -> str:
        self._reading = True
        try:
            return input(PROMPT if self._interactive else "").strip()
        finally:
            self._reading = False

    def _answer(self, line: str) -> None:
        started = time.monotonic()
        said: list[str] = []
        self._stop_asked = False
        try:
            self._current = self._ask(self._dialogue.turn(line))
            if self._stop_asked:
                self._current.stop()
            end = self._show(self._current, said)
        except (EngineError, ValueError) as error:
            if said:
                self._out.print()
            self._note(f"error: {error}")
            return
        finally:
            self._current = None
        self._out.print()
        self._note(self._dialogue.answered(line, "".join(said), end, time.monotonic() - started), "dim")

    def _show(self, answer: AnswerSource, said: list[str]) -> TurnEnd:
        thinking = False
        for item in answer:
            if isinstance(item, TurnEnd):
                return item
            if item.thought and not self._interactive:
                continue  # a pipe gets answers alone
            if thinking and item.text and not item.thought:
                self._out.print("\n")
            thinking = item.thought or (thinking and not item.text)
            if not item.thought:
                said.append(item.text)
            self._out.print(rendered(item), end="", soft_wrap=True)
        raise EngineError("The answer broke off.")

    @contextlib.contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Ctrl-C stops the answer that runs, is KeyboardInterrupt while a line is read, and nothing in between."""

        def handle(number: int, frame: types.FrameType | None) -> None:
            if self._reading:
                raise KeyboardInterrupt
            self._stop_asked = True
            if self._current is not None:
                self._current.stop()

        before = signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _note(self, text: str, style: str = "") -> None:
        self._notes.print(text.translate(CONTROLS), style=style, soft_wrap=True)


def rendered(piece: Piece) -> Text:
    """The text of a token in its colour, thoughts faint and slanted.

    What a model writes moves no cursor: control characters are replaced.
    """
    style = _style(piece.source, rescued=piece.rescued)
    return Text(piece.text.translate(CONTROLS), style + Style(dim=True, italic=True) if piece.thought else style)


def _style(source: str, *, rescued: bool = False) -> Style:
    return Style.parse(STYLES.get(source, "default")) + Style(underline=rescued)
