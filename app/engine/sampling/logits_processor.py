"""What changes a row of the target's logits before a token is chosen from it: penalties, bias, least length, grammar.

All of it depends on the tokens before the place and on nothing else, so a row is treated the same with speculation on or off.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from app.engine.request import GenerationRequest

BAN = -100.0  # a bias as low as this bans a token


class LogitsProcessor:
    """Penalties, bias, least length and grammar of one session, and what it has emitted as far as they need it. Used by the
    worker thread alone."""

    def __init__(self, request: GenerationRequest, ends: frozenset[int], vocab_size: int, device: torch.device) -> None:
        """ends: ids that end the answer."""
        sampling = request.sampling
        self.vocab_size = vocab_size
        self._repetition = sampling.repetition_penalty
        self._presence = sampling.presence_penalty
        self._frequency = sampling.frequency_penalty
        self._penalises = bool(self._presence or self._frequency or self._repetition != 1.0)
        self._counts = torch.zeros(vocab_size if self._penalises else 0, device=device)  # of the answer, by token id
        self._in_prompt = torch.zeros(vocab_size if self._repetition != 1.0 else 0, dtype=torch.bool, device=device)
        if self._repetition != 1.0:
            self._in_prompt[torch.tensor(request.prompt_ids, device=device)] = True
        self._bias_ids = torch.tensor([token for token, _ in sampling.logit_bias], dtype=torch.long, device=device)
        self._bias = torch.tensor([bias for _, bias in sampling.logit_bias], dtype=torch.float32, device=device)
        self._banned = frozenset(token for token, bias in sampling.logit_bias if bias <= BAN)
        self._ends = np.array(sorted(token for token in ends if token < vocab_size), np.int64)
        self._min_tokens = request.stopping.min_tokens
        self._emitted = 0
        self._matcher = request.grammar.matcher() if request.grammar is not None else None
        self._allowed: np.ndarray | None = None  # at the place that `apply` was last asked for; None: everything

    @staticmethod
    def needed(request: GenerationRequest) -> bool:
        sampling = request.sampling
        return bool(
            sampling.presence_penalty
            or sampling.frequency_penalty
            or sampling.repetition_penalty != 1.0
            or sampling.logit_bias
            or request.stopping.min_tokens
            or request.grammar is not None
        )

    def apply(self, row: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
        """A row of raw logits [vocabulary] after the answer so far and then the tokens `path`; itself where nothing changes."""
        scores = row
        if self._penalises:
            scores = self._penalised(scores.float(), path)
        if len(self._bias_ids):
            scores = scores.float().index_add(0, self._bias_ids, self._bias)
        self._allowed = self._allowed_after(path, len(row))
        if self._allowed is not None:
            allowed = torch.from_numpy(self._allowed).to(scores.device)
            scores = scores.masked_fill(~allowed, -torch.inf)
        return scores

    def accept(self, tokens: Sequence[int]) -> None:
        """These tokens are emitted."""
        self._emitted += len(tokens)
        if self._penalises:
            index = torch.tensor(tokens, dtype=torch.long, device=self._counts.device)
            self._counts.index_add_(0, index, torch.ones(len(tokens), device=self._counts.device))
        if self._matcher is not None:
            self._matcher.accept(tokens)

    def forced(self) -> list[int]:
        """The only tokens that the grammar lets come next, one after the other."""
        return self._matcher.forced() if self._matcher is not None else []

    def forbids(self, token: int) -> bool:
        """Whether a token may not stand where `apply` was last asked."""
        return token in self._banned or (self._allowed is not None and not self._allowed[token])

    def _penalised(self, scores: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
        counts = self._counts
        if path:
            index = torch.tensor(list(path), dtype=torch.long, device=counts.device)
            counts = counts.index_add(0, index, torch.ones(len(path), device=counts.device))
        if self._repetition != 1.0:
            weakened = torch.where(scores > 0, scores / self._repetition, scores * self._repetition)
            scores = torch.where(self._in_prompt | (counts > 0), weakened, scores)
        return scores - self._frequency * counts - self._presence * (counts > 0)

    def _allowed_after(self, path: Sequence[int], vocab_size: int) -> np.ndarray | None:
        """bool [vocabulary]; None where everything is allowed. A grammar that can only end is not kept from it."""
        allowed = self._matcher.allowed(path)[:vocab_size] if self._matcher is not None else None
        if self._emitted + len(path) >= self._min_tokens:
            return allowed
        longer = np.ones(vocab_size, np.bool_) if allowed is None else allowed.copy()
        longer[self._ends] = False
        return longer if allowed is None or longer.any() else allowed
