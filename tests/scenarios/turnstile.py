"""A real engine that makes only as many forward passes as a test lets through."""

from __future__ import annotations

import threading
from typing import Any

from app.engine.engine import Engine


class Turnstile:
    """Stands before the target's forward pass.

    passed: passes made since it was put there. fail_at: the pass, from 1, that raises in its place.
    """

    def __init__(self, engine: Engine) -> None:
        target: Any = engine._decoder.target
        self._forward = target.forward
        self._permits = threading.Semaphore(0)
        self.passed = 0
        self.at_gate = 0
        self.fail_at: int | None = None
        target.forward = self._pass

    def allow(self, passes: int = 10_000) -> None:
        for _ in range(passes):
            self._permits.release()

    def _pass(self, *arguments: Any, **named: Any) -> Any:
        self.at_gate += 1
        assert self._permits.acquire(timeout=60.0)
        self.passed += 1
        if self.passed == self.fail_at:
            raise RuntimeError("made to fail")
        return self._forward(*arguments, **named)
