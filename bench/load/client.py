"""Asks one question over HTTP and times the answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx

from bench.load.plan import LoadPlan, Way
from bench.load.sample import Sample, Speculation
from bench.load.stream import StreamError, StreamReader, payloads

UNREACHABLE = "unreachable"  # the kind of error that says that nobody listens
SAID = 300  # characters of a server's message that are kept


@dataclass(frozen=True, slots=True)
class Job:
    """One request. number: among those of its way; text: what the user says."""

    number: int
    question: str
    text: str


class LoadClient:
    """Sends jobs of a plan as streams. began: when the run did, on `clock`."""

    def __init__(
        self, plan: LoadPlan, http: httpx.AsyncClient, model: str | None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._plan, self._http, self._model = plan, http, model
        self.clock = clock
        self.began = clock()

    def body(self, way: Way, text: str, seed: int) -> dict[str, Any]:
        plan = self._plan
        asked = {"messages": [{"role": "user", "content": text}]} if plan.endpoint == "chat" else {"prompt": text}
        body = {
            **asked,
            "max_tokens": plan.max_tokens,
            "temperature": plan.temperature,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._model is not None:
            body["model"] = self._model
        if plan.ignore_eos:
            body["ignore_eos"] = True
        if way.speculative:
            body["speculative"] = way.speculative
        return body

    async def ask(self, job: Job, way: Way, block: int, due: float) -> Sample:
        """One answer, whatever becomes of it. due: time on the clock that its times count from."""
        reader = StreamReader(due)
        body = self.body(way, job.text, self._plan.seed + job.number)
        error = said = None
        try:
            async with asyncio.timeout(self._plan.timeout), self._http.stream("POST", self._plan.path, json=body) as reply:
                if reply.status_code != httpx.codes.OK:
                    raise StreamError(f"http_{reply.status_code}", error_message(await reply.aread()))
                async for payload in payloads(reply):
                    reader.take(payload, self.clock())
            reader.finish()
        except StreamError as failure:
            error, said = failure.kind, str(failure)[:SAID]
        except TimeoutError:
            error, said = "timeout", f"no end within {self._plan.timeout:g} s"
        except httpx.ConnectError as failure:
            error, said = UNREACHABLE, str(failure)
        except httpx.HTTPError as failure:
            error, said = "cut_off", str(failure) or type(failure).__name__
        return self._sample(job, way, block, due, reader, error, said)

    def _sample(
        self, job: Job, way: Way, block: int, due: float, reader: StreamReader, error: str | None, said: str | None
    ) -> Sample:
        sample = Sample(job.number, job.question, way.name, block, due - self.began, self.clock() - due, error=error, said=said)
        if error is not None or reader.first is None:
            return sample
        return replace(
            sample,
            ttft=reader.first - due,
            decode=reader.last - reader.first,
            pause=reader.longest_pause,
            prompt_tokens=int(reader.usage.get("prompt_tokens") or 0),
            completion_tokens=int(reader.usage["completion_tokens"]),
            speculation=_speculation(reader.speculation),
            digest=reader.digest,
        )


def _speculation(counts: dict[str, Any]) -> Speculation | None:
    if "num_spec_steps" not in counts:
        return None
    names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    return Speculation(*(int(counts[name]) for name in names))


def error_message(content: bytes) -> str:
    """What an error reply says."""
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return content[:SAID].decode("utf-8", "replace")
