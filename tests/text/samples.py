"""Small tokenizers of every family, trained in the test, and texts that are hard on detokenisers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

HARD = "👩‍👩‍👧 東京は𝄞 naïve  a , b !\n    .x it 's"
TEXTS = [
    HARD,
    "",
    " ",
    "  leading and trailing  ",
    "def f(x):\n\treturn {'a': x ** 2}  # ok\n\n\n",
    "日本語とРусский и العربية 🏳️‍🌈🇩🇪",
    "1 22  333   4444",
    "é́ — “quotes” … �",
]
CORPUS = [*TEXTS, "the quick brown fox jumps over the lazy dog", "the end of the line , and then the next one !"] * 3
SPECIALS = ["<unk>", "<s>", "</s>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('Unknown role: ' + message['role']) }}{% endif %}"
    "[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def wrap(backend: Tokenizer, template: str | None = TEMPLATE, **names: Any) -> PreTrainedTokenizerFast:
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", **names}
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **names)


def byte_level(vocab_size: int = 400, template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """GPT-2's kind: every id stands for bytes. It puts BOS before a text, and <tool> is an added token that is shown."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<a b é>", normalized=False)])
    return wrap(backend, template)


def sentencepiece(strip: bool = True) -> PreTrainedTokenizerFast:
    """Llama 2's kind: spaces are ▁, unknown characters fall back to byte tokens; Gemma's without the strip."""
    vocabulary = {token: index for index, token in enumerate(SPECIALS)}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    for token in ["▁", "▁▁", *"abcdefghijklmnopqrstuvwxyz,.!", "▁th", "he", "▁a", "▁the"]:
        vocabulary.setdefault(token, len(vocabulary))
    merges = [("▁", "▁"), ("▁", "a"), ("h", "e")]
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *steps] if strip else steps)
    ends = [decoders.Strip(" ", 1, 0)] if strip else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    return wrap(backend)


def metaspace() -> PreTrainedTokenizerFast:
    """T5's kind: a Metaspace decoder and no bytes."""
    backend = Tokenizer(models.Unigram([(token, -1.0) for token in [*SPECIALS, "▁", *"abcdehlotwx東京", "▁the"]], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return wrap(backend)


def word_piece() -> PreTrainedTokenizerFast:
    """A decoder no table describes: words are joined with spaces, ## continues a word."""
    words = [*SPECIALS, "the", "fox", "##es", "jump", "##ed", "over", "##ly", "é", "京"]
    backend = Tokenizer(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    backend.decoder = decoders.WordPiece(cleanup=False)
    return wrap(backend)


BUILDERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte_level": byte_level,
    "sentencepiece": sentencepiece,
    "gemma": lambda: sentencepiece(strip=False),
    "metaspace": metaspace,
    "word_piece": word_piece,
}


@cache
def tokenizer(name: str) -> PreTrainedTokenizerFast:
    return BUILDERS[name]()
