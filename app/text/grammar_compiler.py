"""Compiles JSON schemas and Lark grammars for one vocabulary, within bounds of time and memory, and caches them.

llguidance.hf.from_tokenizer would replace `_Speller`, but it refuses Metaspace decoders, and with SentencePiece vocabularies
it spells forced text with the space that the tokenizer puts before every text.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from app.text.errors import GrammarError, GrammarTooExpensive
from app.text.grammar import CompiledGrammar
from app.text.schema_errors import check_bounds, explain

Cached = TypeVar("Cached")
# One space after commas and colons and no other white space: with free white space a model may write it without end.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MAX_CACHED, MAX_CACHED_BYTES = 64, 96 << 20  # compiled grammars
# Limits on the symbols of a grammar, tried in this order: they bound its memory, and stop schemas whose branches multiply.
SIZES = (4_000, 40_000)
BYTES_PER_SYMBOL = 600
TOO_MANY_SYMBOLS = "grammar size"  # in an error message of llguidance
COMPILE_SECONDS = 2.0  # of CPU time for all grammars of one request; a compilation that has begun is finished
PROBE_STEPS = 16
# Per grammar. Fuel: work of the lexer, about 14,000 units a millisecond. A lexer state takes 1 to 2 KB.
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


class GrammarVocabulary(Protocol):
    """What the compiler needs from a tokenizer."""

    vocab_size: int
    eos_ids: frozenset[int]
    special_ids: frozenset[int]

    def vocabulary_bytes(self) -> list[bytes] | None:
        """The bytes of every id, of control tokens their names; None where tokens do not stand for bytes."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


class GrammarCompiler:
    """Compiles grammars for one vocabulary and caches them. Thread-safe."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._eos_ids = frozenset(token for token in vocabulary.eos_ids if token < vocabulary.vocab_size)
        self._tokenizer: LLTokenizer | None = None
        self._cache: GrammarCache[CompiledGrammar] = GrammarCache(MAX_CACHED, MAX_CACHED_BYTES)
        self._lock = threading.Lock()
        self._request = threading.local()  # .seconds: CPU time left for the grammars of this thread's request

    @contextmanager
    def one_request(self) -> Iterator[None]:
        """Everything compiled inside, on this thread, is for one request: GrammarTooExpensive when it takes too long."""
        self._request.seconds = COMPILE_SECONDS
        try:
            yield
        finally:
            del self._request.seconds

    def json_schema(self, schema: Mapping[str, Any]) -> CompiledGrammar:
        """A grammar of JSON that matches a schema. Raises GrammarError, which names the problem in the schema."""
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
        cached = self._cache.get(source)
        if cached is not None:
            return cached
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
        self._cache.put(source, grammar, size * BYTES_PER_SYMBOL)
        return grammar

    def _probe(self, grammar: CompiledGrammar) -> None:
        """Generate a few tokens, which fails for schemas that refer to themselves without end or are too complex."""
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
            raise GrammarError("This model's tokenizer does not map tokens to bytes, so no schema can be enforced.")
        speller = TokenizerWrapper(_Speller(self._vocabulary, pieces))
        return LLTokenizer(speller, n_vocab=len(pieces), eos_token=sorted(self._eos_ids))


def json_text(schema: Mapping[str, Any]) -> str:
    """The schema as JSON, with JSON_STYLE in place of any style options of its own."""
    return json.dumps({**schema, "x-guidance": JSON_STYLE}, ensure_ascii=False)


class _Speller:
    """The tokenizer as llguidance expects it: called with bytes that a grammar forces, to tokenise them as the model would."""

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
        # Some tokenizers put a space before every text, or an unknown token for what they cannot spell.
        if b"".join(self.tokens[token] for token in ids) == text:
            return ids
        return self._greedy(text)

    def _greedy(self, text: bytes) -> list[int]:
        """The longest matching token each time, until none matches."""
        ids, place = [], 0
        while place < len(text):
            ends = range(min(len(text), place + self._longest), place, -1)
            end = next((end for end in ends if text[place:end] in self._ids), None)
            if end is None:
                break
            ids.append(self._ids[text[place:end]])
            place = end
        return ids


class GrammarCache(Generic[Cached]):
    """An LRU cache, source of a grammar -> compiled, bounded in number and bytes. Thread-safe.

    functools.lru_cache has no bound in bytes.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._entries: OrderedDict[str, tuple[Cached, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, source: str) -> Cached | None:
        with self._lock:
            if source not in self._entries:
                return None
            self._entries.move_to_end(source)
            return self._entries[source][0]

    def put(self, source: str, value: Cached, nbytes: int) -> None:
        """nbytes: of the value; those of the source are added."""
        nbytes += len(source)
        with self._lock:
            if source in self._entries:  # two threads compiled it at once
                self.nbytes -= self._entries.pop(source)[1]
            self._entries[source] = value, nbytes
            self.nbytes += nbytes
            while len(self._entries) > self._most or self.nbytes > self._most_bytes:
                self.nbytes -= self._entries.popitem(last=False)[1][1]
