"""What every process needs at its start and its end: garbage collection while it loads, signals, and a safe exit."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

import typer

logger = logging.getLogger(__name__)

INTERRUPTED, TERMINATED = 130, 143  # exit codes: 128 and the signal's number
_GC_DEFAULT = gc.get_threshold()
_GC_RARE = (100_000, 20, 100)


def collect_garbage_rarely() -> None:
    """For imports and loading, which spend a quarter of their time in garbage collection otherwise."""
    gc.set_threshold(*_GC_RARE)


def collect_garbage_as_usual() -> None:
    """Once a process is ready. Objects made so far are exempt, so no collection walks through them while requests wait."""
    gc.set_threshold(*_GC_DEFAULT)
    gc.freeze()


def leave(code: int | str | None) -> NoReturn:
    """End the process without the interpreter's shutdown, which a thread that still compiles kernels would crash or block."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    logging.shutdown()
    os._exit(code if isinstance(code, int) else 1)


def leave_at_once(code: int, why: str = "") -> NoReturn:
    """leave for signal handlers and running models: waits a second at most for the log. why: the last log line."""

    def last_words() -> None:
        if why:
            logger.warning(why)
        logging.shutdown()

    speaking = threading.Thread(target=last_words, daemon=True)
    speaking.start()
    speaking.join(1.0)  # the interrupted code may hold the lock of a log
    os._exit(code)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM interrupt the block like Ctrl-C, and end the command with the exit code of either. Main thread only."""
    code = INTERRUPTED

    def stop(_number: int, frame: FrameType | None) -> None:
        nonlocal code
        code = TERMINATED
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # shells start background jobs with SIGINT ignored
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(code) from None
    finally:
        signal.signal(signal.SIGTERM, before)
