"""racer-csd chat through a real terminal, on a tiny model."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0  # seconds
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?3[0-9]m")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
PROGRAM = [sys.executable, "-m", "tests.app.chat_child"]
COMMAND = [*PROGRAM, "chat"]


class Pty:
    """A program on its own terminal."""

    def __init__(self, arguments: list[str], **environment: str) -> None:
        self._master, slave = os.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env=_environment() | {"TERM": "xterm-256color", **environment},
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""  # since the last line that was sent

    def send(self, text: str) -> None:
        self.shown = ""
        os.write(self._master, text.encode())

    def wait_for(self, pattern: str) -> str:
        """Read until what is shown, escapes left out, matches; returns it with its escapes."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(pattern, ESCAPE.sub("", self.shown)):
            ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {pattern!r} in {self.shown[-2000:]!r}"
            self.shown += os.read(self._master, 65536).decode(errors="replace")
        return self.shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")}


@contextmanager
def chat(*arguments: str, **environment: str) -> Iterator[Pty]:
    terminal = Pty(list(arguments), **environment)
    try:
        yield terminal
    finally:
        terminal.close()


def test_turns_colours_and_ctrl_c():
    with chat("--max-tokens", "40", "--system", "ab") as terminal:
        greeting = terminal.wait_for(r"rescued\s+> ")
        assert "tiny on cpu (float32)" in ESCAPE.sub("", greeting)
        assert {"32", "36", "35"} <= set(re.findall(r"\x1b\[(\d+)m", greeting))
        terminal.send("abcabcabc\n")
        answer = terminal.wait_for(r"40 tokens, [\d.]+ tokens/s, MAT [\d.]+, drafter racer, ended by length\s+> ")
        assert COLOUR.search(answer)
        terminal.send("again\n")
        kept = re.search(r"(\d+) of (\d+) prompt tokens kept", terminal.wait_for(r"ended by length\s+> "))
        assert kept
        assert int(kept[2]) - int(kept[1]) < 20  # the second turn read what is new: the end of the answer, `again`, the role

        terminal.send("/settings max_tokens 15000\n")
        terminal.wait_for(r"max_tokens = 15000\s+> ")
        terminal.send("without end\n")
        terminal.wait_for(r"without end\s[\s\S]{200}")
        terminal.send("\x03")
        terminal.wait_for(r"ended by cancelled\s+> ")
        terminal.send("\x03\n")  # at the prompt; readline may see the signal with the next key only
        terminal.wait_for(r"Ctrl-D or /quit ends\.\s+> ")
        terminal.send("/settings max_tokens 5\n")
        terminal.wait_for(r"max_tokens = 5\s+> ")
        terminal.send("on\n")
        terminal.wait_for(r"5 tokens,[^\n]*prompt tokens kept[^\n]*ended by length\s+> ")
        terminal.send("/plain on\n")
        terminal.wait_for(r"decoded plainly\.\s+> ")
        terminal.send("/clear\n")
        terminal.wait_for(r"forgotten\.\s+> ")
        terminal.send("afresh\n")
        plain = terminal.wait_for(r"5 tokens,[^\n]*ended by length\s+> ")
        assert "drafter none" in plain
        assert "kept" not in plain
        terminal.send("/stats\n")
        terminal.wait_for(r"5 answers, \d+ tokens in[^>]*in an earlier turn\s+> ")  # Ctrl-D counts at the prompt only
        terminal.send("\x04")
        assert terminal.process.wait(PATIENCE) == 0


def test_no_color_and_quit():
    with chat("--max-tokens", "30", NO_COLOR="1") as terminal:
        terminal.wait_for(r"rescued\s+> ")
        terminal.send("abcabcabc\n")
        assert not COLOUR.search(terminal.wait_for(r"ended by length\s+> "))
        terminal.send("/quit\n")
        assert terminal.process.wait(PATIENCE) == 0


def test_a_pipe_gets_the_answers_alone():
    lines = b"abc\n/system x\n\ndef\n" + b"n" * 20_000 + b"\n"
    done = subprocess.run(
        [*COMMAND, "--max-tokens", "10"],
        input=lines,
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.decode().splitlines()) == 2
    assert b"\x1b" not in done.stdout + done.stderr
    notes = done.stderr.decode()
    assert "system: x" in notes
    assert notes.count("10 tokens,") == 2
    assert "error: This model's context is 20000 tokens" in notes  # and the conversation goes on


def test_an_interrupted_generate_ends_with_130():
    command = [*PROGRAM, "generate", "abc", "--max-tokens", "15000"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert len(process.stdout.read(50)) == 50
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert b"Traceback" not in errors
