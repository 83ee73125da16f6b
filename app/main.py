"""The app factory, routes, errors and metrics around one engine that loads in the background, and the process that runs it."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import socket
import sys
import threading
import types
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

import uvicorn
from anyio import to_thread
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from app import collection
from app.api.errors import install_error_handlers
from app.api.gate import Gate
from app.api.hosts import is_loopback
from app.api.openapi import describe
from app.api.routes import OPENAPI_PATH, PATHS, ROUTERS
from app.api.service import Service
from app.connections import watched_protocol
from app.engine.interface import EngineInterface
from app.engine.interruption import stopped_while_loading
from app.engine.models.cache import drop_unfinished
from app.metrics import Metrics, package_version
from app.settings import Settings
from app.systemd import Notifier
from app.watchdog import Watchdog

logger = logging.getLogger(__name__)

BACKLOG = 2048  # connections that wait to be accepted
KEYS_EVERY = 2.0  # seconds between two looks at the file of API keys
FLUSH_SECONDS = 2  # for last bytes to clients, once nothing generates any more


def create_app(
    settings: Settings,
    engine_factory: Callable[[], EngineInterface],
    on_failure: Callable[[Exception], None] | None = None,
) -> FastAPI:
    """A new app with an engine, a metrics registry and a state of its own.

    engine_factory runs on a thread once the server starts; until it returns, /health is 200, /ready and the rest 503.
    on_failure gets what it raises, or EngineFailed when the engine is given up later, on a thread: whoever owns the process
    ends it there. Without one the failure is logged. /health is red from then on. `app.state.service` is the engine's holder.
    """
    service = Service(settings, engine_factory, Metrics(PATHS), on_failure or _log_failure)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        tasks = [asyncio.create_task(_follow_keys(service)), asyncio.create_task(Watchdog(service, Notifier()).run())]
        yield
        for task in tasks:
            task.cancel()
        await to_thread.run_sync(service.stop, settings.shutdown_grace)

    app = FastAPI(
        title="racer-csd",
        version=package_version(),
        description="OpenAI-compatible inference with speculative decoding",
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url=OPENAPI_PATH,
        docs_url=None,  # app.api.pages
        redoc_url=None,
    )
    app.state.service = service
    app.openapi = functools.partial(describe, app)  # type: ignore[method-assign]
    install_error_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    app.add_middleware(Gate, service=service)
    if settings.cors_origins:  # outermost: a browser reads no reply without its headers, refusals included
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("X-Request-Id", "Retry-After", "X-Should-Retry"),
        )
    return app


async def _follow_keys(service: Service) -> None:
    while service.settings.api_keys_file is not None:
        await asyncio.sleep(KEYS_EVERY)
        await to_thread.run_sync(service.keys.refresh)


def _log_failure(error: Exception) -> None:
    logger.critical("the engine has failed: %s", error)


# -- the process around it ------------------------------------------------------------------------------------------------


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
        collection.as_usual()
        info = engine.info
        logger.info(
            "serving %s at %s: device %s, dtype %s, threads %d, drafter %s, draft %s, %d nodes, context %d tokens",
            *(info.name, url, info.device, info.dtype, info.threads),
            *(info.drafter, info.draft, info.max_nodes, info.max_context),
        )
        return engine

    def give_up(error: Exception) -> None:
        failures.append(explain(error))
        try:
            service.stop(0.0)  # whoever waits hears of the end
        finally:
            server.should_exit = True

    app = create_app(settings, load, give_up)
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        http=watched_protocol(settings, service.cut_off),
        log_config=None,
        log_level=max(logging.WARNING, logging.getLevelName(settings.log_level.upper())),
        access_log=settings.log_level == "debug",
        workers=1,
        server_header=False,
        timeout_graceful_shutdown=FLUSH_SECONDS,
    )

    def stop() -> None:
        status = service.status()
        running = 0 if status is None else status.running
        logger.info("stopping: %d running, up to %g seconds", running, settings.shutdown_grace)
        service.stop(settings.shutdown_grace)

    if service.keys.open and not is_loopback(host):
        logger.warning("no API key is set: whoever reaches %s may use this server; set api_keys (RACER_API_KEYS)", url)
    server = _server(config, stop, lambda: service.loading, settings.target)
    logger.info("listening on %s, loading %s", url, settings.target)
    server.run(sockets=[listener])
    logger.info("stopped")
    if failures:
        sys.stderr.write(f"racer-csd: error: {failures[0]}\n")
    code = 1 if failures else 0
    if service.native_code_running:
        _leave_at_once(code)
    return code


def _server(config: uvicorn.Config, stop: Callable[[], None], loading: Callable[[], bool], name: str) -> uvicorn.Server:
    """loading: whether the model is. name: of the model."""

    class Server(uvicorn.Server):
        """Code 0 after a signal: new requests get 503 while what runs may end, then the rest gets an error, then it closes.

        The listener stays open meanwhile, so that a load balancer can see /ready turn red. A second signal ends all at once; so
        does the first one while the model loads, when there is nothing to finish.
        """

        stopping = False

        def handle_exit(self, sig: int, frame: types.FrameType | None) -> None:
            if loading():
                drop_unfinished()
                _leave_at_once(128 + sig, stopped_while_loading(name))
            if self.stopping:
                _leave_at_once(130 if sig == signal.SIGINT else 1, "a second signal: stopped at once")
            self.stopping = True
            threading.Thread(target=self._stop_and_exit, name="racer-stop", daemon=True).start()

        def _stop_and_exit(self) -> None:
            try:
                stop()
            finally:
                self.should_exit = True

    return Server(config)


def _leave_at_once(code: int, why: str = "") -> NoReturn:
    """End the process past the interpreter's own end, which native code on another thread would crash in. why: for the log."""

    def last_words() -> None:
        if why:
            logger.warning(why)
        logging.shutdown()

    speaking = threading.Thread(target=last_words, daemon=True)
    speaking.start()
    speaking.join(1.0)  # whoever was interrupted may hold the lock of a log
    os._exit(code)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # who reads in the log that we listen may connect
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener
