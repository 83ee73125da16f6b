"""Files in the cache that keep what was measured of a model. One that cannot be used is measured again."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

import torch

from app.engine.cost.neighbours import CpuUsage, read_processors
from app.engine.models.cache import discard
from app.engine.models.device import dtype_name
from app.engine.models.loading import LoadedModel
from app.engine.models.machine import allowed_cpus, processor
from csd.files import replacing
from racer.budget import CostCurve

logger = logging.getLogger(__name__)

VERSION = 2  # of the cost curve's file; counted up when its content means something else

_Kept = TypeVar("_Kept")


class Measurements:
    """The files of one model on one machine: its cost curve and its prior rows."""

    def __init__(
        self,
        cache: Path,
        loaded: LoadedModel,
        *,
        drafts: bool = False,
        read: Callable[[], CpuUsage | None] = read_processors,
    ) -> None:
        """drafts: whether it is a draft model, for which fewer sizes are measured. read: the load of the processors."""
        device = torch.cuda.get_device_name(loaded.device) if loaded.device.type == "cuda" else processor()
        parameters = list(loaded.model.parameters())
        content = hashlib.sha256(repr([tuple(parameter.shape) for parameter in parameters]).encode())
        for parameter in parameters:
            content.update(repr(parameter.detach().flatten()[:8].float().tolist()).encode())
        model = f"{type(loaded.model).__name__}-{content.hexdigest()[:16]}-{dtype_name(loaded.dtype)}"
        machine = hashlib.sha256(repr((device, torch.get_num_threads(), torch.__version__)).encode()).hexdigest()[:12]
        self._path = cache / "measured" / f"{model}-{machine}{'-draft' if drafts else ''}.json"
        self.read = read
        threads = torch.get_num_threads() if loaded.device.type == "cpu" else 1  # one thread feeds an accelerator
        self.disturbed = 0.0  # cores that other programs used during the measurement, where that is too many
        self.spare = max(0, allowed_cpus() - threads)
        self.prior_path = cache / "measured" / f"{model}.npz"

    def load(self) -> CostCurve | None:
        """The saved curve; None where there is none, or where it cannot be used, which is logged."""
        return read_kept(self._path, _curve_of)

    def save(self, curve: CostCurve) -> None:
        content = json.dumps({"version": VERSION, "curve": curve.points})
        keep(self._path, lambda stream: stream.write(content.encode()))


def _curve_of(path: Path) -> CostCurve:
    kept = json.loads(path.read_text(encoding="utf-8"))
    if kept.get("version") != VERSION:
        raise ValueError("it is of another version")
    return CostCurve([int(n) for n, _ in kept["curve"]], [float(seconds) for _, seconds in kept["curve"]])


def read_kept(path: Path, read: Callable[[Path], _Kept]) -> _Kept | None:
    """What `read` makes of a file; None where there is no file, or where it fails: then the file is removed."""
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file can provoke nearly any
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        logger.warning("%s cannot be used (%s: %s): measuring again", path, type(error).__name__, reason)
        discard(path)
        return None


def keep(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace a file by what `write` writes. Where the cache cannot be written, the next start measures again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            write(stream)
    except OSError as error:
        logger.warning("%s could not be kept: %s", path, error.strerror or type(error).__name__)
