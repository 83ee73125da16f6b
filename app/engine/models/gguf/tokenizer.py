"""The tokenizer of a GGUF file, with what transformers loses restored."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

# llama.cpp's names for vocabularies whose merges were learnt with each digit on its own. transformers splits the text as
# GPT-2 does for these, which joins "  1" differently.
_SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell"})
# Vocabularies that were learnt on composed text (NFC); a GGUF file does not say so.
_COMPOSED = frozenset({"qwen2"})
_USER_DEFINED = 4  # token type: matched whole in a text and shown
_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """What the file says about its tokens."""

    model: str  # gpt2 is byte-level BPE, llama SentencePiece
    pre_tokenizer: str | None
    tokens: list[str]  # by id
    types: list[int]  # by id


def read_tokenizer(path: Path, vocabulary: GgufVocabulary) -> PreTrainedTokenizerFast:
    """A tokenizer that gives the ids the model was trained on. A damaged file can raise any exception."""
    made = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    backend = _repaired(made.backend_tokenizer, vocabulary)
    ids = backend.get_vocab(with_added_tokens=True)
    names = {name: str(token) for name in _NAMES if (token := getattr(made, name)) is not None and str(token) in ids}
    # A generic class, so that loading it again rebuilds nothing from the model's type.
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=made.chat_template, **names)


def _repaired(backend: Tokenizer, vocabulary: GgufVocabulary) -> Tokenizer:
    state = json.loads(backend.to_str())
    # Classes add their usual special tokens where the file has none of that name: ids the model has no row for.
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < len(vocabulary.tokens)]
    if vocabulary.model == "gpt2":
        _restore_user_defined(state, vocabulary)
    repaired = Tokenizer.from_str(json.dumps(state))
    if vocabulary.pre_tokenizer in _SINGLE_DIGITS:
        repaired.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        )
    if vocabulary.pre_tokenizer in _COMPOSED and repaired.normalizer is None:
        repaired.normalizer = normalizers.NFC()
    return repaired


def _restore_user_defined(state: dict[str, Any], vocabulary: GgufVocabulary) -> None:
    """Restore tokens with characters outside the byte alphabet: transformers respells them, so that no text contains them."""
    vocab: dict[str, int] = state["model"]["vocab"]
    by_id = {token_id: token for token, token_id in vocab.items()}
    added = {token["id"] for token in state["added_tokens"]}
    for token_id, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=False)):
        if kind != _USER_DEFINED or token_id in added or token in vocab:
            continue
        vocab.pop(by_id.get(token_id, ""), None)
        vocab[token] = token_id
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        state["added_tokens"].append({"id": token_id, "content": token, **plain})
    state["added_tokens"].sort(key=lambda entry: int(entry["id"]))
