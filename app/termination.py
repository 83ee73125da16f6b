"""How a command that keeps what it has done ends when it is stopped: by Ctrl-C or by SIGTERM."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

import typer

INTERRUPTED, TERMINATED = 130, 143  # exit codes: 128 and the signal's number


def leave(code: int | str | None) -> NoReturn:
    """End the process past the interpreter's own end: a thread that still compiles kernels would crash in it or hold it up."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    logging.shutdown()
    os._exit(code if isinstance(code, int) else 1)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM interrupt the block as Ctrl-C does, and end the command with the exit code of either. In the main thread."""
    code = INTERRUPTED

    def stop(_number: int, frame: FrameType | None) -> None:
        nonlocal code
        code = TERMINATED
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # a shell starts what runs in its background with SIGINT ignored
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(code) from None
    finally:
        signal.signal(signal.SIGTERM, before)
