"""Grammars that an answer must follow: which tokens may come next, at any node of a draft tree."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from app.text.errors import GrammarError, GrammarTooExpensive
from app.text.grammar_cache import GrammarCache
from app.text.schema_errors import NO_WAY_ON, check_bounds, explain

# JSON with one space after commas and colons and no other white space: free white space would let a model write it for ever.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
KEPT, KEPT_BYTES = 64, 96 << 20  # compiled grammars
# Symbols of a grammar at most, tried in this order: they tell its bytes, and a schema whose branches multiply has too many.
SIZES = (4_000, 40_000)
BYTES_PER_SYMBOL = 600
TOO_MANY_SYMBOLS = "grammar size"  # in a message of the library
COMPILE_SECONDS = 2.0  # of a processor, for all grammars of one request; the one under way is ended
PROBE_STEPS = 16
# What one grammar may cost: fuel is work of the lexer, about 14,000 units a millisecond; a state takes 1 to 2 KB.
LIMITS = {
    size: LLParserLimits(
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_lexer_states=40_000,
        max_grammar_size=size,
        verbose_errors=False,
    )
    for size in SIZES
}
Mask = npt.NDArray[np.bool_]


class GrammarVocabulary(Protocol):
    """What a grammar must know of a tokenizer."""

    vocab_size: int
    eos_ids: frozenset[int]
    special_ids: frozenset[int]

    def vocabulary_bytes(self) -> list[bytes] | None:
        """The bytes of every id, control tokens by their names; None where tokens do not stand for bytes."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


class CompiledGrammar:
    """A compiled grammar, for any number of answers. param: what its errors name, see GrammarError."""

    def __init__(self, parser: LLMatcher, vocab_size: int, eos_ids: frozenset[int], param: str | None = None) -> None:
        self._parser, self._vocab_size, self._eos_ids, self._param = parser, vocab_size, eos_ids, param

    def asked_by(self, param: str) -> CompiledGrammar:
        """The same grammar for a request that asks for it by this field: fields may share what is compiled."""
        return CompiledGrammar(self._parser, self._vocab_size, self._eos_ids, param)

    def matcher(self) -> GrammarMatcher:
        """The state of one answer, at its beginning."""
        return GrammarMatcher(self._parser.deep_copy(), self._vocab_size, self._eos_ids, self._param)


class GrammarMatcher:
    """How far one answer has come in its grammar. For one thread at a time."""

    def __init__(self, parser: LLMatcher, vocab_size: int, eos_ids: frozenset[int], param: str | None = None) -> None:
        self._parser, self._vocab_size, self._eos_ids, self._param = parser, vocab_size, eos_ids, param
        self._ahead: list[int] = []  # tokens the parser has read beyond the accepted ones
        self._over = False  # an EOS was accepted
        self._asked: list[int] | None = None  # the path of the last mask
        self._mask: Mask = np.zeros(0, np.bool_)

    def allowed(self, path: Sequence[int]) -> Mask:
        """bool [vocab_size], not to be written to: what may come after the accepted tokens and then those of `path`.

        The path need not be accepted later. After an EOS only EOS may come. Raises GrammarError where the grammar leaves
        nothing that the vocabulary could say, or has become too complex; ValueError for a path that it does not allow.
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
        """These tokens are part of the answer. Raises ValueError where the grammar does not allow them."""
        before_end = list(takewhile(lambda token: token not in self._eos_ids, tokens))
        if self._over:
            return
        self._asked = None
        self._move(before_end)
        self._ahead.clear()
        self._over = len(before_end) < len(tokens)

    def forced(self) -> list[int]:
        """The only tokens that may come after the accepted ones, one after the other, as far as that is known."""
        if self._over:
            return []
        self._asked = None
        self._move([])
        forced = self._parser.compute_ff_tokens()
        self._check()
        return forced

    def _move(self, path: list[int]) -> None:
        """Have the parser stand behind `path`: paths are asked for one token longer each time, so little is read again."""
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
        # where the vocabulary cannot spell what must come now, the mask is that of what comes after it
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


class GrammarCompiler:
    """Grammars for one vocabulary. Thread-safe; what it compiled last is kept."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._eos_ids = frozenset(token for token in vocabulary.eos_ids if token < vocabulary.vocab_size)
        self._tokenizer: LLTokenizer | None = None
        self._kept: GrammarCache[CompiledGrammar] = GrammarCache(KEPT, KEPT_BYTES)
        self._lock = threading.Lock()
        self._request = threading.local()  # seconds: that the grammars of a request on this thread may still take

    @contextmanager
    def one_request(self) -> Iterator[None]:
        """What is compiled inside, on this thread, is for one request: GrammarTooExpensive where it takes too long."""
        self._request.seconds = COMPILE_SECONDS
        try:
            yield
        finally:
            del self._request.seconds

    def json_object(self) -> CompiledGrammar:
        """Any JSON object."""
        return self.json_schema({"type": "object"})

    def json_schema(self, schema: Mapping[str, Any]) -> CompiledGrammar:
        """JSON that a schema admits. Raises GrammarError, which says what in the schema is the matter."""
        check_bounds(schema)
        return self._compile(LLMatcher.grammar_from_json_schema(json_text(schema)))

    def lark(self, text: str) -> CompiledGrammar:
        """A grammar in llguidance's dialect of Lark; schemas in it must have passed `embedded`. Raises GrammarError."""
        return self._compile(LLMatcher.grammar_from_lark(text))

    def embedded(self, schema: Mapping[str, Any]) -> str:
        """A schema as a part of a Lark rule. Raises GrammarError, as json_schema."""
        self.json_schema(schema)
        return f"%json {json_text(schema)}"

    def _compile(self, source: str) -> CompiledGrammar:
        kept = self._kept.get(source)
        if kept is not None:
            return kept
        left: float | None = getattr(self._request, "seconds", None)
        if left is not None and left <= 0:
            raise GrammarTooExpensive("The schemas of this request take too long to prepare: make them simpler, or send fewer.")
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._new_tokenizer()
            tokenizer = self._tokenizer
        started = time.thread_time()
        try:
            return self._compiled(source, tokenizer)
        finally:
            if left is not None:
                self._request.seconds = left - (time.thread_time() - started)

    def _compiled(self, source: str, tokenizer: LLTokenizer) -> CompiledGrammar:
        for size in SIZES:
            parser = LLMatcher(tokenizer, source, log_level=0, limits=LIMITS[size])
            if not parser.is_error() or TOO_MANY_SYMBOLS not in parser.get_error():
                break
        if parser.is_error():
            raise GrammarError(explain(parser.get_error()))
        grammar = CompiledGrammar(parser, self._vocabulary.vocab_size, self._eos_ids)
        self._probe(grammar)
        self._kept.keep(source, grammar, size * BYTES_PER_SYMBOL)
        return grammar

    def _probe(self, grammar: CompiledGrammar) -> None:
        """Write a few tokens: a schema that refers to itself without end, or that is too much to follow, shows here."""
        matcher = grammar.matcher()
        eos = list(self._eos_ids)
        for _ in range(PROBE_STEPS):
            allowed = matcher.allowed(()).copy()
            allowed[eos] = False
            if not allowed.any():
                return
            matcher.accept([int(np.argmax(allowed))])

    def _new_tokenizer(self) -> LLTokenizer:
        pieces = self._vocabulary.vocabulary_bytes()
        if pieces is None:
            raise GrammarError("This model's tokenizer does not tell which bytes a token stands for: no schema can be kept to.")
        speller = TokenizerWrapper(_Speller(self._vocabulary, pieces))
        return LLTokenizer(speller, n_vocab=len(pieces), eos_token=sorted(self._eos_ids))


def json_text(schema: Mapping[str, Any]) -> str:
    """The schema with our own style of JSON, which takes the place of any options inside it."""
    return json.dumps({**schema, "x-guidance": JSON_STYLE}, ensure_ascii=False)


class _Speller:
    """The tokenizer as llguidance wants it: called with the bytes that a grammar forces, to spell them as the model would."""

    def __init__(self, vocabulary: GrammarVocabulary, pieces: list[bytes]) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = min(vocabulary.eos_ids, default=0)
        self.bos_token_id = None
        self.tokens = pieces
        self.special_token_ids = sorted(vocabulary.special_ids)
        self._ids = {piece: token for token, piece in enumerate(pieces) if piece and token not in vocabulary.special_ids}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes) -> list[int]:
        try:
            ids = self._vocabulary.encode(text.decode(), add_special_tokens=False)
        except ValueError:
            ids = []
        # Some tokenizers put a space before every text, and an unknown token for what they cannot write.
        if b"".join(self.tokens[token] for token in ids) == text:
            return ids
        return self._greedy(text)

    def _greedy(self, text: bytes) -> list[int]:
        """The longest token each time, as far as there is one."""
        ids, place = [], 0
        while place < len(text):
            ends = range(min(len(text), place + self._longest), place, -1)
            end = next((end for end in ends if text[place:end] in self._ids), None)
            if end is None:
                break
            ids.append(self._ids[text[place:end]])
            place = end
        return ids
