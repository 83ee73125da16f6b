"""The service as a separate process: `racer-csd serve` with a tiny model, and what tests ask of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.api.support import COMPLETIONS, samples
from tests.models import SMALL
from tests.tiny import tokenizer
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
CONTEXT = 4096
ADMIN = {"Authorization": "Bearer root"}
PROMPTS = ("the cat sat on the mat, the cat sat on", "abcabcabcabcabc", "Q: 1+1? A: 2 Q: 1+2? A:", "to be or not to be or")


def save_model(directory: Path) -> Path:
    """Random weights, one character a token, and room for long answers."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**SMALL, "max_position_embeddings": CONTEXT})).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    model.save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return directory


class ServiceProcess:
    """One running server."""

    def __init__(self, model: Path, directory: Path, **settings: str) -> None:
        """directory: for its log and its cache. Returns at once."""
        self._log = directory / "serve.log"
        given = {"target": str(model), "served_model_name": "tiny", "port": "0", "dtype": "float32", "threads": "1"}
        given |= {"prior_rows": "0", "admin_key": "root", "cache_dir": str(directory / "cache"), **settings}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RACER_")}
        variables = {f"RACER_{name.upper()}": value for name, value in given.items()}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app.commands", "serve"],
                cwd=ROOT,
                env={**kept, **variables, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self.client = httpx.Client(timeout=60.0)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        wait_until(lambda: "listening on " in self.log or self.process.poll() is not None)
        assert self.process.poll() is None, self.log
        self.client.base_url = httpx.URL(self.log.split("listening on ")[1].split(",")[0])
        wait_until(lambda: self.client.get("/ready").status_code == 200 or self.process.poll() is not None, timeout=120.0)
        assert self.process.poll() is None, self.log

    @property
    def url(self) -> str:
        return str(self.client.base_url)

    def body(self, prompt: str, tokens: int = 80, **fields: Any) -> dict[str, Any]:
        return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields}

    def ask(self, prompt: str, tokens: int = 80, **fields: Any) -> str:
        """The text of an answer."""
        reply = self.client.post(COMPLETIONS, json=self.body(prompt, tokens, **fields))
        assert reply.status_code == 200, reply.text
        return str(reply.json()["choices"][0]["text"])

    def plain(self, prompt: str, tokens: int = 80) -> str:
        return self.ask(prompt, tokens, speculative={"drafter": "none"})

    def stream(self, prompt: str, tokens: int = 80) -> Iterator[str]:
        """The data of each event; ends with the connection."""
        body = self.body(prompt, tokens, stream=True)
        with httpx.stream("POST", self.url + COMPLETIONS, json=body, timeout=60.0) as reply:
            assert reply.status_code == 200
            yield from (line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: "))

    def metric(self, name: str) -> float:
        """The value of a series, summed over its labels."""
        found = [value for series, value in samples(self.client).items() if series.partition("{")[0] == f"racer_{name}"]
        assert found, name
        return sum(found)

    def store(self) -> dict[str, Any]:
        return dict(self.client.get("/ready").json()["store"])

    def fingerprint(self) -> str:
        return str(self.client.get("/admin/ocm", headers=ADMIN).json()["fingerprint"])

    def table(self) -> dict[tuple[int, int], float]:
        """What the server's memory holds."""
        lines = self.client.get("/admin/ocm/export", headers=ADMIN).text.splitlines()[1:]
        rows = map(json.loads, lines)
        return {(row["draft"], row["target"]): row["count"] for row in rows}

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """The exit code."""
        return self.process.wait(60.0)


@contextmanager
def service_process(model: Path, directory: Path, **settings: str) -> Iterator[ServiceProcess]:
    """A server that answers; killed at the end where it still runs."""
    directory.mkdir(exist_ok=True)
    service = ServiceProcess(model, directory, **settings)
    try:
        service.wait_until_ready()
        yield service
    finally:
        service.client.close()
        service.process.kill()
        service.process.wait()


def streamed_text(events: list[str]) -> str:
    """The joined text of a stream that ended as it should."""
    assert events[-1] == "[DONE]", events[-1]
    return "".join(choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"])
