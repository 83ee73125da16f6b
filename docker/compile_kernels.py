"""Compile every kernel that serving needs into NUMBA_CACHE_DIR, while the image is built."""

from __future__ import annotations

import torch

from app.engine.request import SamplingParams
from app.engine.sampling.choose import choose
from racer.drafter import RacerConfig
from racer.factory import warm_up

warm_up(RacerConfig())
choose(torch.zeros(4), SamplingParams(temperature=1.0), seed=0, position=0)
