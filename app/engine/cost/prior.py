"""Prior rows: the target's successors of each token taken alone, so that a fresh session can draft from the first step.

They are a property of the model, not of anyone's text. The worker fills them while it has nothing else to do, lowest ids first
(they are the most frequent ones in a vocabulary learnt by merging), and they are kept in the cache from one start to the next.
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

CHUNK_SECONDS = 0.1  # about how long a request may have to wait for a chunk
VERSION = 1  # of the file; counted up when its content means something else
SAVE_EVERY = 10.0  # seconds
LARGEST_CHUNK = 256


class PriorRows:
    """Fills rows of successors chunk by chunk. Used by the worker thread alone.

    ids int32 [n, k], -1 where a row is not known yet, and probs float32 [n, k]: of token i taken alone.
    """

    def __init__(self, probe: Probe, start: int, rows: int, curve: CostCurve | None, path: Path | None) -> None:
        """start: the token each one is put behind (BOS where there is one). rows: how many tokens.

        curve: what rows cost, for the size of a chunk. path: .npz to keep them.
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
        self._first: KVSlab | None = None  # the start token; each chunk is read behind a copy of it

    @property
    def complete(self) -> bool:
        return self._done >= len(self.ids)

    @property
    def done(self) -> int:
        """Tokens whose row is known."""
        return self._done

    @property
    def wanted(self) -> int:
        """Tokens whose row is to be known."""
        return len(self.ids)

    def close(self) -> None:
        """Keep what is not kept yet; after the worker's last round."""
        if self._unsaved:
            self._save()

    def advance(self, room: int) -> bool:
        """Do the next chunk, with at most `room` rows of KV; False where that is too little for one, or all is done."""
        size = min(self._chunk(), len(self.ids) - self._done, room - 2)  # the start token is there twice
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
            assert isinstance(first, KVSlab)  # what cannot verify a tree has no prior rows
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
        """Keep what is done."""
        self._saved, self._unsaved = time.monotonic(), False
        if self._path is not None:
            ids, probs = self.ids[: self._done], self.probs[: self._done]
            keep(self._path, lambda stream: np.savez(stream, version=VERSION, ids=ids, probs=probs))
