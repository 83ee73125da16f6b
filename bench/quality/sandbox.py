"""Runs generated code: a subprocess with bounds on time, memory and files, in an empty directory, without network.

This keeps a model's mistakes from harming the machine. It is not a prison for code written to break out: where that is a
concern, run the whole harness in a container.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile

SECONDS = 10.0
MEMORY = 1 << 30  # bytes of address space
FILE_SIZE = 1 << 20
PASSED = 83  # exit status of a program that was run to its end; exit() in the middle gives another
FUTURE = re.compile(r"^from __future__ import (?:\([^)]*\)|[^\n(]*)\n", re.MULTILINE)

GUARD = """
import resource as _resource, socket as _socket
for _limit, _value in ((_resource.RLIMIT_CPU, {cpu}), (_resource.RLIMIT_AS, {memory}), (_resource.RLIMIT_FSIZE, {file}),
                       (_resource.RLIMIT_CORE, 0)):
    _resource.setrlimit(_limit, (_value, _value))
def _refused(*_args, **_kwargs):
    raise OSError("no network here")
_socket.socket = _socket.create_connection = _socket.getaddrinfo = _refused
"""


def passes(program: str, *, seconds: float = SECONDS, memory: int = MEMORY) -> bool:
    """Whether the Python program gets to its end without an error, within its bounds. Its output is dropped."""
    futures = "".join(FUTURE.findall(program))  # they must stand first, before the guard
    program = FUTURE.sub("\n", program)
    guard = futures + GUARD.format(cpu=max(1, round(seconds)), memory=memory, file=FILE_SIZE)
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            [sys.executable, "-I", "-"],
            cwd=directory,
            env={"PATH": os.defpath, "HOME": directory, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.communicate((f"{guard}{program}\nraise SystemExit({PASSED})\n").encode("utf-8", "replace"), timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        else:
            return process.returncode == PASSED
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started, too
            process.wait()
