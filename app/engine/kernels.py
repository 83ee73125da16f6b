"""Compiles the kernels an engine drafts with while its model is still being loaded."""

from __future__ import annotations

import logging
import threading

from app.engine.config import EngineConfig
from racer.drafter import Policy
from racer.factory import warm_up

logger = logging.getLogger(__name__)


def compile_ahead(config: EngineConfig) -> None:
    """Start compiling in the background, or reading what was compiled earlier. `compile_now` waits for it."""
    threading.Thread(target=_compile_quietly, args=(config,), name="racer-kernels", daemon=True).start()


def compile_now(config: EngineConfig) -> None:
    """Compile, and wait for a compilation in progress (numba's lock does): no request will wait for the compiler."""
    warm_up(config.racer, _policies(config))


def _policies(config: EngineConfig) -> tuple[Policy, ...]:
    """Hybrid requests use auto whatever is configured. Other policies, for benchmarks, compile at first use."""
    policy = config.racer.policy
    return (policy,) if policy == "auto" else (policy, "auto")


def _compile_quietly(config: EngineConfig) -> None:
    try:
        compile_now(config)
    except Exception as error:  # the engine will run into the same error, and reports it
        logger.debug("compiling ahead failed", exc_info=error)
