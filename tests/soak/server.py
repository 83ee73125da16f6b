"""The server under soak: `racer-csd serve` as a separate process, with a tiny float32 model and its own Redis."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers as hf

from tests.models import SMALL
from tests.tiny import tokenizer
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
CONTEXT = 2048
MAX_RUNNING, MAX_QUEUED = 4, 8
MAX_BODY = 64 * 1024
SERVING = " serving "
TEMPLATE = "{% for message in messages %}[{{ message.role }}] {{ message.content }} {% endfor %}[assistant] "
SETTINGS = {
    "served_model_name": "soak",
    "dtype": "float32",
    "port": 0,
    "threads": 1,
    "max_running": MAX_RUNNING,
    "max_queued": MAX_QUEUED,
    "max_body_bytes": MAX_BODY,
    "prefill_chunk": 64,
    "max_nodes": 16,
    "shutdown_grace": 1,
}


def save_model(directory: Path) -> Path:
    """A random model of one character a token, whose context is long enough for prompts that take several chunks."""
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**{**SMALL, "max_position_embeddings": CONTEXT})).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)  # so that its greedy text is varied
    hf.utils.logging.disable_progress_bar()
    model.save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    (directory / "template.jinja").write_text(TEMPLATE)
    return directory


class ServerProcess:
    """Started and ready when made. Its log is in `directory`."""

    def __init__(self, directory: Path, store: str) -> None:
        model = save_model(directory / "model")
        settings = {
            **SETTINGS,
            "target": model,
            "chat_template": model / "template.jinja",
            "store": store,
            "cache_dir": directory / "cache",
        }
        words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        self.log = directory / "server.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app.commands", "serve", "--allow-csd", *words],
                cwd=ROOT,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        wait_until(lambda: SERVING in self.log.read_text() or self._process.poll() is not None, 120.0)
        line = next((line for line in self.log.read_text().splitlines() if SERVING in line), None)
        assert line is not None, self.log.read_text()
        self.url = line.split(" at ")[1].split(": device")[0]
        self._ps = psutil.Process(self._process.pid)

    def resources(self) -> dict[str, Any]:
        """Resident bytes, open files and threads."""
        with self._ps.oneshot():
            return {
                "rss": self._ps.memory_info().rss,
                "files": self._ps.num_fds(),
                "threads": self._ps.num_threads(),
            }

    def terminate(self) -> None:
        """SIGTERM; returns at once."""
        self._process.terminate()

    def wait(self, timeout: float = 60.0) -> int:
        """The exit code."""
        return self._process.wait(timeout)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def complaints(self) -> list[str]:
        """Lines of the log that a server in good health does not write."""
        return [
            line
            for line in self.log.read_text().splitlines()
            if " ERROR " in line or " CRITICAL " in line or "Traceback" in line
        ]
