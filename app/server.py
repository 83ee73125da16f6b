"""The process that serves the app: it listens, loads the engine in the background, and ends on a signal or a failure."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from app.api.hosts import is_loopback
from app.api.service import Service
from app.connections import watched_protocol
from app.engine.interface import EngineInterface
from app.engine.interruption import stopped_while_loading
from app.engine.models.cache import drop_unfinished
from app.main import create_app
from app.process import collect_garbage_as_usual, leave_at_once
from app.settings import Settings

logger = logging.getLogger(__name__)

BACKLOG = 2048  # connections that wait to be accepted
FLUSH_SECONDS = 2  # for last bytes to clients, once nothing generates any more


def run(settings: Settings, engine_factory: Callable[[], EngineInterface], explain: Callable[[Exception], str] = str) -> int:
    """Serve until a signal or a failure of the engine; returns the exit code. explain: one line for a failure.

    Raises OSError when the address cannot be listened on.
    """
    listener = _listen(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    failures: list[str] = []

    def load() -> EngineInterface:
        engine = engine_factory()
        collect_garbage_as_usual()
        _log_engine(engine, url)
        return engine

    def give_up(error: Exception) -> None:
        failures.append(explain(error))
        try:
            service.stop(0.0)  # requests that wait get an error
        finally:
            server.should_exit = True

    app = create_app(settings, load, give_up)
    service: Service = app.state.service
    server = _Server(_config(app, settings), service, settings)
    if service.keys.open and not is_loopback(host):
        logger.warning("no API key is set: whoever reaches %s may use this server; set api_keys (RACER_API_KEYS)", url)
    logger.info("listening on %s, loading %s", url, settings.target)
    server.run(sockets=[listener])
    logger.info("stopped")
    if failures:
        sys.stderr.write(f"racer-csd: error: {failures[0]}\n")
    code = 1 if failures else 0
    if service.native_code_running:
        leave_at_once(code)
    return code


class _Server(uvicorn.Server):
    """Ends with code 0 after a signal: new requests get 503, running ones may end, then the rest gets an error.

    The listener stays open meanwhile, so that a load balancer sees /ready change. A second signal ends the process at once; so
    does the first one while the model loads, when there is nothing to finish.
    """

    def __init__(self, config: uvicorn.Config, service: Service, settings: Settings) -> None:
        super().__init__(config)
        self._service = service
        self._settings = settings
        self._stopping = False

    def handle_exit(self, sig: int, frame: types.FrameType | None) -> None:
        if self._service.loading:
            drop_unfinished()
            leave_at_once(128 + sig, stopped_while_loading(self._settings.target))
        if self._stopping:
            leave_at_once(130 if sig == signal.SIGINT else 1, "a second signal: stopped at once")
        self._stopping = True
        threading.Thread(target=self._stop_and_exit, name="racer-stop", daemon=True).start()

    def _stop_and_exit(self) -> None:
        try:
            status = self._service.status()
            running = 0 if status is None else status.running
            grace = self._settings.shutdown_grace
            logger.info("stopping: %d running, up to %g seconds", running, grace)
            self._service.stop(grace)
        finally:
            self.should_exit = True


def _config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    service: Service = app.state.service
    return uvicorn.Config(
        app,
        http=watched_protocol(settings, service.cut_off),
        log_config=None,
        log_level=max(logging.WARNING, logging.getLevelName(settings.log_level.upper())),
        access_log=settings.log_level == "debug",
        workers=1,
        server_header=False,
        timeout_graceful_shutdown=FLUSH_SECONDS,
    )


def _log_engine(engine: EngineInterface, url: str) -> None:
    info = engine.info
    logger.info(
        "serving %s at %s: device %s, dtype %s, threads %d, drafter %s, draft %s, %d nodes, context %d tokens",
        *(info.name, url, info.device, info.dtype, info.threads),
        *(info.drafter, info.draft, info.max_nodes, info.max_context),
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # from now on, before the log says so, clients may connect
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener
