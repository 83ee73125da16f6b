"""The compiled kernels an engine drafts with, made while its model is still being loaded."""

from __future__ import annotations

import logging
import threading

from app.engine.config import EngineConfig
from racer.drafter import Policy
from racer.factory import warm_up

logger = logging.getLogger(__name__)


def compile_ahead(config: EngineConfig) -> None:
    """Begin to compile, or to read what was compiled earlier; returns at once. `compile_now` waits for it."""
    threading.Thread(target=_compile_quietly, args=(config,), name="racer-kernels", daemon=True).start()


def compile_now(config: EngineConfig) -> None:
    """Return when no request will wait for a compiler. The compiler's lock makes this wait for what is in progress."""
    warm_up(config.racer, _policies(config))


def _policies(config: EngineConfig) -> tuple[Policy, ...]:
    """Hybrid requests take auto whatever is configured. Others, which benchmarks name, compile at their first use."""
    policy = config.racer.policy
    return (policy,) if policy == "auto" else (policy, "auto")


def _compile_quietly(config: EngineConfig) -> None:
    try:
        compile_now(config)
    except Exception as error:  # the engine meets the same, where it can be told
        logger.debug("compiling ahead failed", exc_info=error)
