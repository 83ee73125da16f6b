"""The engine as the routes see it: loading, ready, stopping, or failed."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Literal, cast

from fastapi import Request

from app.api.admission import Admission, Lease
from app.api.auth import KeyRing, open_paths
from app.api.errors import ApiError, model_not_found, unavailable
from app.api.generations import Generations
from app.api.hosts import Hosts
from app.api.limits import Limits
from app.api.text_work import TextWork
from app.engine.errors import EngineClosed, EngineFailed, GenerationLost
from app.engine.interface import EngineInterface, EngineStatus, ModelInfo
from app.metrics import Metrics, package_version
from app.settings import Settings

logger = logging.getLogger(__name__)

STUCK_FOR_GOOD = 2.0  # times `stuck_after`
State = Literal["loading", "ready", "stopping", "failed"]


class Service:
    """Holds one engine from its loading to its close. Thread-safe."""

    keep_alive_after = 15.0  # seconds of silence until a stream gets a comment

    def __init__(
        self,
        settings: Settings,
        engine_factory: Callable[[], EngineInterface],
        metrics: Metrics,
        on_failure: Callable[[Exception], None],
    ) -> None:
        """on_failure: gets what the factory raises, or later EngineFailed, not on the event loop's thread."""
        self.settings = settings
        self.metrics = metrics
        self.keys = KeyRing(settings.keys, settings.api_keys_file)
        self.hosts = Hosts.of(settings)
        self.open_paths = open_paths(settings.open_routes)
        self.admission = Admission(settings.max_per_key, metrics.key_refused)
        admin = settings.admin_key
        self.admin_keys = None if admin is None else KeyRing([admin.get_secret_value()])
        self.created = int(time.time())
        self.text = TextWork(settings.text_queue_bytes, metrics.text_refused)
        self.failure: Exception | None = None  # why loading failed, or the engine was given up
        self._factory = engine_factory
        self._on_failure = on_failure
        self._engine: EngineInterface | None = None
        self._stopping = self._closing = self._over = False
        self._generations: weakref.WeakSet[Generations] = weakref.WeakSet()  # of replies that are not over
        self._lock = threading.Lock()
        # a daemon: a download or a conversion in progress must not hold up the end of the process
        self._loader = threading.Thread(target=self._load, name="racer-loader", daemon=True)
        metrics.watch(self.status)
        metrics.watch_text(self.text.status)

    # -- lifecycle -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load; returns at once."""
        self._loader.start()

    @property
    def loading(self) -> bool:
        return self._loader.is_alive()

    @property
    def native_code_running(self) -> bool:
        """Whether a thread of this engine may be inside the model."""
        status = self.status()
        return self.loading or (status is not None and status.alive)

    def drain(self) -> None:
        """Refuse new work from now on."""
        with self._lock:
            self._stopping = True
        if self._engine is not None:
            self._engine.drain()

    def stop(self, grace: float) -> None:
        """Drain, give running work `grace` seconds, close the engine. Blocks; a second call does nothing."""
        self.drain()
        with self._lock:
            engine, self._closing = (None, True) if self._closing else (self._engine, True)
        if engine is None:
            return
        # a timer, not the engine: a long step could outlast the time that a supervisor gives this process
        end = threading.Timer(grace, self._end_replies)
        end.daemon = True
        end.start()
        engine.close(grace)
        end.cancel()
        self._end_replies()

    def opened(self, generations: Generations) -> None:
        """Register a reply's generations: they fail once the time to drain is over."""
        with self._lock:
            self._generations.add(generations)
            over = self._over
        if over:
            generations.fail(self._end_error)

    def cut_off(self) -> None:
        """Record that a connection was aborted because its client stopped reading."""
        logger.info("a client took nothing for %g seconds and was cut off", self.settings.unread_timeout)
        self.metrics.unread_reply("time")

    def _end_replies(self) -> None:
        with self._lock:
            self._over = True
            left = list(self._generations)
        for generations in left:
            generations.fail(EngineClosed() if self.failure is None else GenerationLost())

    @property
    def _end_error(self) -> EngineClosed:
        return EngineClosed() if self.failure is None else EngineFailed()

    def _load(self) -> None:
        try:
            engine = self._factory()
        except Exception as error:
            logger.debug("loading failed", exc_info=error)
            self._fail(error)
            return
        engine.observer = self.metrics
        self.metrics.model_loaded(engine.info)
        with self._lock:
            too_late = self._stopping
            self._engine = None if too_late else engine
        if too_late:
            engine.close()

    def give_up_if_failed(self) -> None:
        """Give the engine up if its worker is dead, or stuck for twice the time after which /health reports it."""
        status = self.status()
        if status is None or self._stopping or self.failure is not None:
            return
        if not status.alive or status.heartbeat_age >= STUCK_FOR_GOOD * self.settings.stuck_after:
            self._fail(EngineFailed())

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self._on_failure(error)

    # -- what routes ask -------------------------------------------------------------------------------------------------

    def status(self) -> EngineStatus | None:
        """None until the engine is loaded."""
        return self._engine.status() if self._engine is not None else None

    @property
    def info(self) -> ModelInfo | None:
        return self._engine.info if self._engine is not None else None

    @property
    def state(self) -> State:
        if self.failure is not None:
            return "failed"
        status = self.status()
        if (
            status is not None
            and (not status.alive or status.heartbeat_age >= self.settings.stuck_after)
            and not self._stopping
        ):
            return "failed"
        if self._stopping:
            return "stopping"
        return "ready" if status is not None and status.ready else "loading"

    def ready_engine(self) -> EngineInterface:
        """The engine, or ApiError 503 while it cannot serve."""
        state = self.state
        if self._engine is None or state != "ready":
            raise not_ready(state)
        return self._engine

    def admit(self, tenant: str) -> Lease:
        """A place for a request that will generate. Raises ApiError 429; `ready_engine` checks that the engine is ready."""
        status = self.status() if self.state == "ready" else None
        return self.admission.enter(tenant, status)

    def limits(self, engine: EngineInterface) -> Limits:
        return Limits.of(self.settings, engine.info)

    def check_model(self, name: str | None) -> None:
        """Raises ApiError 404 for a name other than the served model's."""
        served = self._engine.info.name if self._engine is not None else self.settings.served_name
        if name is not None and name != served:
            raise model_not_found(served)

    @property
    def fingerprint(self) -> str:
        """OpenAI's system_fingerprint: a hash of all that answers depend on besides the request."""
        info = self.info
        facts = (info.name, info.architecture, info.dtype, info.device, info.parameters) if info is not None else ()
        return "fp_" + hashlib.sha256(repr((package_version(), *facts)).encode()).hexdigest()[:12]


def not_ready(state: State) -> ApiError:
    """503, with the state as code."""
    texts = {
        "loading": "The model is still loading. Try again later.",
        "stopping": "The server is shutting down.",
        "failed": "The engine has failed; the server's log says why.",
    }
    return unavailable(texts.get(state, "The server is not ready."), state)


def service_of(request: Request) -> Service:
    return cast(Service, request.app.state.service)
