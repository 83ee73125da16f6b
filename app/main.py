"""The app factory: routes, errors and metrics around one engine that loads in the background."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from anyio import to_thread
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from app.api.errors import install_error_handlers
from app.api.gate import Gate
from app.api.openapi import describe
from app.api.routes import OPENAPI_PATH, PATHS, ROUTERS
from app.api.service import Service
from app.engine.interface import EngineInterface
from app.metrics import Metrics, package_version
from app.settings import Settings
from app.watchdog import Notifier, Watchdog

logger = logging.getLogger(__name__)

KEYS_EVERY = 2.0  # seconds between two checks of the file of API keys


def create_app(
    settings: Settings,
    engine_factory: Callable[[], EngineInterface],
    on_failure: Callable[[Exception], None] | None = None,
) -> FastAPI:
    """A new app with its own engine, metrics registry and state. `app.state.service` holds the engine.

    engine_factory: runs on a thread once the server starts; until it returns, /health is 200, /ready and the rest 503.
    on_failure: gets what the factory raises, or EngineFailed when the engine is given up later, on a thread; it should end the
    process. Default: the failure is logged. From then on /health reports the failure.
    """
    service = Service(settings, engine_factory, Metrics(PATHS), on_failure or _log_failure)
    app = FastAPI(
        title="racer-csd",
        version=package_version(),
        description="OpenAI-compatible inference with speculative decoding",
        lifespan=_lifespan,
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
    if settings.cors_origins:  # outermost: browsers hide every reply without its headers, refusals too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("X-Request-Id", "Retry-After", "X-Should-Retry"),
        )
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    service.start()
    tasks = [asyncio.create_task(_follow_keys(service)), asyncio.create_task(Watchdog(service, Notifier()).run())]
    yield
    for task in tasks:
        task.cancel()
    await to_thread.run_sync(service.stop, service.settings.shutdown_grace)


async def _follow_keys(service: Service) -> None:
    while service.settings.api_keys_file is not None:
        await asyncio.sleep(KEYS_EVERY)
        await to_thread.run_sync(service.keys.refresh)


def _log_failure(error: Exception) -> None:
    logger.critical("the engine has failed: %s", error)
