"""The plan of a load test: where it asks, what, how fast, and which ways to decode it compares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from bench.errors import BenchError

Endpoint = Literal["chat", "completions"]
PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
BLOCKS = 4  # at least so many blocks of each way, where several are compared


@dataclass(frozen=True, slots=True)
class Way:
    """One `speculative` object that requests carry; an empty one is left out. name: its name in reports."""

    name: str
    speculative: dict[str, Any]

    @property
    def plain(self) -> bool:
        return self.speculative.get("drafter") == "none"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to measure. rate None: closed loop. concurrency None: no bound on what is open, for an open loop only."""

    url: str
    data: tuple[Path, ...]
    ways: tuple[Way, ...]
    endpoint: Endpoint = "chat"
    model: str | None = None  # None: the first that the server lists
    concurrency: int | None = 8
    rate: float | None = None  # requests a second on average
    limit: int | None = None  # requests of each way; None: each question once
    warmup: int = 8  # requests of each way before the clock runs
    block: int | None = None  # requests of one way in a row; None: decided by the rest
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0  # of arrivals, and the first of the requests' own
    ignore_eos: bool = False
    timeout: float = 600.0  # seconds a request may take
    wait: float = 60.0  # seconds to wait for a server that is not ready

    def __post_init__(self) -> None:
        if self.concurrency is None and self.rate is None:
            raise BenchError("a closed loop needs --concurrency")

    @property
    def path(self) -> str:
        return PATHS[self.endpoint]

    def block_size(self, requests: int) -> int:
        """Requests of one way in a row: several times what runs at once, so that the end of a block weighs little."""
        if self.block is not None:
            return self.block
        if len(self.ways) == 1:
            return requests
        return max(2 * (self.concurrency or 1), -(-requests // BLOCKS))

    def arguments(self) -> dict[str, Any]:
        """The plan as JSON."""
        shown = asdict(self)
        return {**shown, "data": [path.name for path in self.data], "ways": [way.speculative for way in self.ways]}


def parse_ways(texts: Sequence[str]) -> tuple[Way, ...]:
    """The values of --speculative, in their order. Raises BenchError."""
    ways: dict[str, Way] = {}
    for text in texts:
        try:
            members: Any = json.loads(text)
        except ValueError as error:
            raise BenchError(f"--speculative {text!r} is not JSON: {error}") from error
        if not isinstance(members, dict):
            raise BenchError(f'--speculative {text!r} is not a JSON object: give one such as \'{{"drafter": "none"}}\'')
        name = " ".join(f"{member}={_shown(value)}" for member, value in members.items()) or "default"
        if name in ways:
            raise BenchError(f"--speculative {text!r} is given twice")
        ways[name] = Way(name, members)
    return tuple(ways.values())


def base_url(url: str) -> str:
    """The server's address without a trailing /v1. Raises BenchError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BenchError(f"--url takes an address such as http://127.0.0.1:8000, not {url!r}")
    if "@" in parts.netloc:
        raise BenchError("--url must not hold a password: reports repeat it")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
