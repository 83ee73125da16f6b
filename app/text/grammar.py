"""Compiled grammars, and which tokens they allow next in an answer, at any node of a draft tree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from app.text.errors import GrammarError
from app.text.schema_errors import NO_WAY_ON, explain

Mask = npt.NDArray[np.bool_]


class CompiledGrammar:
    """A compiled grammar, for any number of answers. param: what its errors name, see GrammarError."""

    def __init__(self, parser: LLMatcher, vocab_size: int, eos_ids: frozenset[int], param: str | None = None) -> None:
        self._parser, self._vocab_size, self._eos_ids, self._param = parser, vocab_size, eos_ids, param

    def asked_by(self, param: str) -> CompiledGrammar:
        """The same grammar with another `param`: several fields of requests may share one."""
        return CompiledGrammar(self._parser, self._vocab_size, self._eos_ids, param)

    def matcher(self) -> GrammarMatcher:
        """A matcher at the beginning of an answer."""
        return GrammarMatcher(self._parser.deep_copy(), self._vocab_size, self._eos_ids, self._param)


class GrammarMatcher:
    """The position of one answer in its grammar. Not thread-safe."""

    def __init__(self, parser: LLMatcher, vocab_size: int, eos_ids: frozenset[int], param: str | None = None) -> None:
        self._parser, self._vocab_size, self._eos_ids, self._param = parser, vocab_size, eos_ids, param
        self._ahead: list[int] = []  # tokens the parser has consumed beyond the accepted ones
        self._over = False  # an EOS was accepted
        self._asked: list[int] | None = None  # the path of the last mask
        self._mask: Mask = np.zeros(0, np.bool_)

    def allowed(self, path: Sequence[int]) -> Mask:
        """bool [vocab_size], read-only: the tokens allowed after the accepted ones and then those of `path`.

        The path need not be accepted later. After an EOS only EOS is allowed. Raises GrammarError where the vocabulary has no
        token that the grammar allows, or the grammar became too complex; ValueError for a path that it does not allow.
        """
        before_end = list(takewhile(lambda token: token not in self._eos_ids, path))
        if self._over or len(before_end) < len(path):
            return self._only_eos()
        if before_end != self._asked:
            self._asked = None
            self._move(before_end)
            self._mask = self._read_mask()
            self._asked = before_end
        return self._mask

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance by tokens that are part of the answer. Raises ValueError where the grammar does not allow them."""
        before_end = list(takewhile(lambda token: token not in self._eos_ids, tokens))
        if self._over:
            return
        self._asked = None
        self._move(before_end)
        self._ahead.clear()
        self._over = len(before_end) < len(tokens)

    def forced(self) -> list[int]:
        """The tokens that must come next, as far as the grammar leaves no choice."""
        if self._over:
            return []
        self._asked = None
        self._move([])
        forced = self._parser.compute_ff_tokens()
        self._check()
        return forced

    def _move(self, path: list[int]) -> None:
        """Move the parser to the end of `path`, reusing what it shares with the last one: paths grow by one token at a time."""
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._ahead, path, strict=False)))
        if shared < len(self._ahead):
            self._parser.rollback(len(self._ahead) - shared)
            del self._ahead[shared:]
        rest = path[shared:]
        if not rest:
            return
        read = self._parser.try_consume_tokens(rest)
        self._ahead.extend(rest[:read])
        self._check()
        if read < len(rest):
            raise ValueError("the grammar does not allow this token")

    def _read_mask(self) -> Mask:
        bits = np.frombuffer(self._parser.compute_bitmask(), np.uint8)
        self._check()
        mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        some = int(np.argmax(mask))
        # where no token spells what must come now, llguidance gives the mask of what comes after it
        if not mask[some] or (some not in self._eos_ids and self._parser.validate_tokens([some]) == 0):
            raise GrammarError(explain(NO_WAY_ON), self._param)
        return mask

    def _check(self) -> None:
        if self._parser.is_error():
            raise GrammarError(explain(self._parser.get_error()), self._param)

    def _only_eos(self) -> Mask:
        mask = np.zeros(self._vocab_size, np.bool_)
        mask[list(self._eos_ids)] = True
        return mask
