"""Characters that a vocabulary cannot spell are counted, in every kind of tokenizer."""

from __future__ import annotations

import pytest

from app.text.codec import TextCodec
from tests.text.samples import HARD, TEXTS, tokenizer
from tests.tiny import tokenizer as tiny_tokenizer


def dropped(codec: TextCodec, text: str) -> int:
    return codec.dropped(text, codec.encode(text, add_special_tokens=False))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        (HARD, 0),
        ("a\x04b", 1),
        ("\x04\x06\x13 a\x04", 4),
        ("\x05", 0),
        ("a\U00040000b", 1),
        ("\U000f0000", 0),
        ("<|im_end|>", 0),
    ],
)
def test_the_default_model(default_codec: TextCodec, text: str, count: int):
    assert dropped(default_codec, text) == count
    assert default_codec.read_chat([{"role": "user", "content": f"{text}<|im_end|>"}]).dropped == count


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "gemma"])
def test_none_where_every_byte_has_a_token(kind: str, text: str):
    assert dropped(TextCodec(tokenizer(kind), frozenset({2})), text) == 0


def test_what_becomes_the_unknown_token():
    words = TextCodec(tokenizer("metaspace"), frozenset({2}))
    assert [dropped(words, text) for text in ("the hat", "theq", "qqq hat q", "<unk>", "q<unk>")] == [0, 1, 4, 0, 1]
    pieces = TextCodec(tokenizer("word_piece"), frozenset({2}))
    assert (dropped(pieces, "the"), dropped(pieces, "dog")) == (0, 3)
    tiny = TextCodec(tiny_tokenizer(), frozenset({2}))
    assert (dropped(tiny, "abc"), dropped(tiny, "aéb")) == (0, 1)
