"""Chooses a token from a row of logits, greedy or sampled, by one pure function.

Sampling is argmax_v(log p(v) + gumbel(seed, position, v)): the Gumbel-max trick with noise that is a stateless hash. The
token at a position then depends on the logits, the seed and the position alone, never on how many rows were verified with
it, so the same seed gives the same text with speculation on or off.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from numba import njit

from app.engine.request import SamplingParams
from racer.cache import prepare

prepare(Path(__file__).parent)

GREEDY_BELOW = 1e-5  # a lower temperature is greedy; dividing by it would only overflow

_MASK32 = 0xFFFFFFFF


def is_greedy(sampling: SamplingParams) -> bool:
    return sampling.temperature < GREEDY_BELOW


def choose(logits: torch.Tensor, sampling: SamplingParams, seed: int, position: int) -> int:
    """The token after this row of raw logits [vocabulary].

    position: number of tokens that the answer has already.
    """
    if is_greedy(sampling):
        return int(torch.argmax(logits))
    tokens, scores = _candidates(logits.float(), sampling)
    if tokens is None:
        tokens = torch.arange(logits.shape[0], device=logits.device)
    noisy = scores + gumbel(seed, position, tokens)
    return int(tokens[torch.topk(noisy, 1).indices[0]])  # topk is several times faster than argmax here


def narrowed(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """The row [vocabulary] with -inf for tokens that top-k, top-p and min-p exclude; unchanged for greedy decoding."""
    tokens = None if is_greedy(sampling) else _candidates(logits.float(), sampling)[0]
    if tokens is None:
        return logits
    return torch.full_like(logits, -torch.inf).index_copy(0, tokens, logits[tokens])


def _candidates(logits: torch.Tensor, sampling: SamplingParams) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Token ids in ascending order (None: all) and their tempered logits, after top-k, top-p and min-p in this order.

    Each filter also keeps the tokens that tie with the last one kept, so the set does not depend on the order of a sort.
    """
    scores = logits.double() / sampling.temperature
    if sampling.top_k <= 0 and sampling.top_p >= 1.0 and sampling.min_p <= 0.0:
        return None, scores
    ids: torch.Tensor | None = None
    if 0 < sampling.top_k < scores.shape[0]:
        least = torch.topk(scores, sampling.top_k).values[-1]
        ids = torch.nonzero(scores >= least).squeeze(1)
        scores = scores[ids]
    keep = torch.ones_like(scores, dtype=torch.bool)
    if sampling.top_p < 1.0:
        keep &= scores >= _nucleus_bound(scores, sampling.top_p)
    if sampling.min_p > 0.0:
        keep &= scores >= scores.max() + torch.log(torch.tensor(sampling.min_p, dtype=scores.dtype))
    kept = torch.nonzero(keep).squeeze(1)
    return (kept if ids is None else ids[kept]), scores[kept]


def _nucleus_bound(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """The smallest score inside the nucleus: the shortest prefix, by falling score, whose probability reaches top_p."""
    log_total = torch.logsumexp(scores, 0)
    size = min(256, scores.shape[0])
    while True:  # the nucleus is usually small, so sort no more than needed
        head = torch.topk(scores, size).values
        reached = torch.cumsum(torch.exp(head - log_total), 0) >= top_p
        if bool(reached[-1]):
            return head[int(torch.argmax(reached.to(torch.uint8)))]
        if size == scores.shape[0]:
            return head[-1]
        size = min(size * 8, scores.shape[0])


def gumbel(seed: int, position: int, tokens: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float64, for token ids [n]: a function of (seed, position, token) and nothing else."""
    first, second, third = _keys(seed, position)
    if tokens.device.type == "cpu":
        bits = torch.from_numpy(random_bits(tokens.numpy(), first, second, third))
    else:
        bits = random_bits_on_device(tokens, first, second, third)
    uniform = (bits.double() + 0.5) * 2.0**-48
    return -torch.log(-torch.log(uniform))


def _keys(seed: int, position: int) -> tuple[int, int, int]:
    """Three 32-bit words that are a hash of (seed, position)."""
    word = _mix_int((seed & _MASK32) ^ 0x9E3779B9)
    word = _mix_int(word ^ ((seed >> 32) & _MASK32) ^ 0x85EBCA6B)
    word = _mix_int(word ^ (position & _MASK32))
    return word, (word * 5 + 0xE6546B64) & _MASK32, _mix_int(word ^ 0xC2B2AE35)


@njit(nogil=True, cache=True)
def random_bits(tokens: npt.NDArray[np.int64], first: int, second: int, third: int) -> npt.NDArray[np.int64]:
    """48 random bits for each token id [n]: MurmurHash3's finaliser over 32-bit words, three times with different keys."""
    bits = np.empty(tokens.size, np.int64)
    for index in range(tokens.size):
        word = (tokens[index] ^ first) & 0xFFFFFFFF
        word ^= word >> 16
        word = (word * 0x45D9F3B) & 0xFFFFFFFF
        word ^= word >> 13
        word = (word * 0x42B2AE35) & 0xFFFFFFFF
        word ^= (word >> 16) ^ second
        word ^= word >> 16
        word = (word * 0x45D9F3B) & 0xFFFFFFFF
        word ^= word >> 13
        word = (word * 0x42B2AE35) & 0xFFFFFFFF
        word ^= word >> 16
        high = word
        word ^= third
        word ^= word >> 16
        word = (word * 0x45D9F3B) & 0xFFFFFFFF
        word ^= word >> 13
        word = (word * 0x42B2AE35) & 0xFFFFFFFF
        word ^= word >> 16
        bits[index] = (high << 16) | (word >> 16)
    return bits


def random_bits_on_device(tokens: torch.Tensor, first: int, second: int, third: int) -> torch.Tensor:
    """`random_bits` in tensor operations, bit for bit: products of a 32-bit word and these multipliers stay below 2**63."""
    high = _mix(_mix(tokens ^ first) ^ second)
    return (high << 16) | (_mix(high ^ third) >> 16)


def _mix(word: torch.Tensor) -> torch.Tensor:
    word = word ^ (word >> 16)
    word = (word * 0x45D9F3B) & _MASK32
    word = word ^ (word >> 13)
    word = (word * 0x42B2AE35) & _MASK32
    return word ^ (word >> 16)


def _mix_int(word: int) -> int:
    word &= _MASK32
    word ^= word >> 16
    word = word * 0x85EBCA6B & _MASK32
    word ^= word >> 13
    word = word * 0xC2B2AE35 & _MASK32
    return word ^ (word >> 16)
