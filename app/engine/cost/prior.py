"""Prior rows: for each token alone, the target's likeliest successors, so that a new session can draft from its first step.

They are a property of the model, not of anyone's text. The worker computes them while it is idle, lowest ids first, since those
are the most frequent in a vocabulary learnt by merging. A file in the cache keeps them for the next start.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

import numpy as np

from app.engine.cost.measure import Probe
from app.engine.cost.measurements import keep, read_kept
from app.engine.forward.kv import KVSlab
from app.engine.forward.target import Rows
from app.engine.sampling.logits import successors
from racer.budget import CostCurve

logger = logging.getLogger(__name__)

CHUNK_SECONDS = 0.1  # about: a request that arrives may have to wait for one chunk
VERSION = 1  # of the file; counted up when its content means something else
SAVE_EVERY = 10.0  # seconds
LARGEST_CHUNK = 256


class PriorRows:
    """Computes rows of successors chunk by chunk. Used by the worker thread alone.

    Row i of ids int32 [n, k] and probs float32 [n, k] is for token i; ids are -1 in rows that are not computed yet.
    """

    def __init__(self, probe: Probe, start: int, rows: int, curve: CostCurve | None, path: Path | None) -> None:
        """start: the token read before each one (BOS where there is one). rows: number of tokens.

        curve: what rows cost, to choose the size of a chunk. path: the .npz file that keeps them.
        """
        self._probe = probe
        self._start = start
        self._curve = curve
        self._path = path
        self._saved = time.monotonic()
        shape = (min(rows, probe.vocab_size), probe.top_k)
        self.ids = np.full(shape, -1, np.int32)
        self.probs = np.zeros(shape, np.float32)
        self._done = self._load()
        self._unsaved = False
        self._first: KVSlab | None = None  # the start token's KV; each chunk is computed behind a copy of it

    @property
    def complete(self) -> bool:
        return self._done >= len(self.ids)

    @property
    def done(self) -> int:
        """Number of rows that are computed."""
        return self._done

    @property
    def wanted(self) -> int:
        """Number of rows to compute."""
        return len(self.ids)

    def close(self) -> None:
        """Save what is not saved yet; after the worker's last round."""
        if self._unsaved:
            self._save()

    def advance(self, kv_rows: int) -> bool:
        """Compute the next chunk in at most `kv_rows` rows of KV; False where they are too few for one, or all is done."""
        size = min(
            self._chunk(), len(self.ids) - self._done, kv_rows - 2
        )  # the start token takes two: the one that is kept, and its copy
        if size < 1:
            return False
        cache = self._begin().copy(1 + size, 1)
        tokens = np.arange(self._done, self._done + size, dtype=np.int64)
        alone = Rows(cache, tokens, np.zeros(size, np.int32), np.eye(size, dtype=np.bool_))
        logits = self._probe.target.forward([alone])[:, : self._probe.vocab_size]
        top = successors(logits, self._probe.top_k, probabilities=True)
        self.ids[self._done : self._done + size] = top.ids
        self.probs[self._done : self._done + size] = top.probabilities
        self._done += size
        self._unsaved = True
        if self.complete or time.monotonic() - self._saved > SAVE_EVERY:
            self._save()
        if self.complete:
            self._first = None
            logger.info("prior rows of %d tokens are ready", self._done)
        return True

    def _begin(self) -> KVSlab:
        if self._first is None:
            first = self._probe.target.open(1)
            assert isinstance(first, KVSlab)  # a target that cannot verify trees has no prior rows
            self._probe.target.forward([Rows.of_text(first, [self._start])])
            first.commit([0])
            self._first = first
        return self._first

    def _chunk(self) -> int:
        if self._curve is None:
            return 64
        costs = self._curve.table(LARGEST_CHUNK)
        return max(16, int(np.searchsorted(costs, CHUNK_SECONDS)) - 1)

    def _load(self) -> int:
        kept = None if self._path is None else read_kept(self._path, self._rows_of)
        if kept is None:
            return 0
        ids, probs = kept
        done = min(len(ids), len(self.ids))
        self.ids[:done] = ids[:done]
        self.probs[:done] = probs[:done]
        return done

    def _rows_of(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        with np.load(path) as kept:
            if "version" not in kept or int(kept["version"]) != VERSION:
                raise ValueError("it is of another version")
            ids, probs = kept["ids"], kept["probs"]
        width = self._probe.top_k
        if ids.dtype != np.int32 or probs.dtype != np.float32 or not (ids.ndim == 2 and ids.shape == probs.shape):
            raise ValueError("these are no rows of successors")
        if ids.shape[1] != width:
            raise ValueError(f"its rows have {ids.shape[1]} successors, not {width}")
        if ids.size and not (ids.min() >= 0 and ids.max() < self._probe.vocab_size):
            raise ValueError("it has ids outside the vocabulary")
        if not (np.isfinite(probs).all() and (probs >= 0.0).all() and (probs <= 1.0).all()):
            raise ValueError("it has values that are no probabilities")
        return ids, probs

    def _save(self) -> None:
        self._saved, self._unsaved = time.monotonic(), False
        if self._path is not None:
            ids, probs = self.ids[: self._done], self.probs[: self._done]
            keep(self._path, lambda stream: np.savez(stream, version=VERSION, ids=ids, probs=probs))
