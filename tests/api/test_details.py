"""Where the tokens of a completion stand in its text, with tokenizers that split characters and add tokens of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import pytest

from app.api.token_details import DetailOptions, Echo, TokenDetails
from app.engine.events import Delta, TokenLogprob
from app.engine.models.loading import load_tokenizer
from app.text.codec import TextCodec
from tests.synthetic import SyntheticCodec
from tests.text.samples import HARD, byte_level, sentencepiece
from tests.tiny import tokenizer as tiny_tokenizer

ANSWER = "the 東 end"


@pytest.fixture(scope="module")
def default_codec() -> TextCodec:
    return TextCodec(load_tokenizer("smollm2"), frozenset({2}))


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
@pytest.mark.parametrize("prompt", [HARD, "the 京 <s>", None])
def test_offsets_point_into_the_text(kind: Callable[[], Any], prompt: str | None):
    codec = TextCodec(kind(), frozenset({2}))
    details = TokenDetails(DetailOptions(codec, logprobs="completion"))
    answer = [*codec.encode(ANSWER, add_special_tokens=False), 2]
    scores = tuple(TokenLogprob(-1.0) for _ in answer)
    text, ids = "", []
    if prompt is not None:
        ids = codec.encode(prompt)
        details.add(Delta((), "", (), prompt_logprobs=(None,) * len(ids)), Echo(prompt, tuple(ids)))
        text = prompt
    before = ids or codec.encode("x")
    text += codec.decode([*before, *answer])[len(codec.decode(before)) :]
    details.add(Delta(tuple(answer), "", (), logprobs=scores))
    found = details.take()["logprobs"]
    assert len(found["tokens"]) == len(found["text_offset"]) == len(ids) + len(answer)
    assert found["text_offset"][len(ids)] == len(prompt or "")
    whole = 0
    for token, name, place in zip([*ids, *answer], found["tokens"], found["text_offset"], strict=True):
        if token in codec.special_ids or name.startswith("bytes:"):
            continue
        whole += 1
        assert text[place:].startswith(name) or (place == 0 and text.startswith(name.removeprefix(" ")))
    assert whole > 1
    assert found["text_offset"] == sorted(found["text_offset"])


@pytest.mark.parametrize(
    ("prompt", "places"),
    [
        ("a\x04b\x04c", [0, 2, 4]),
        ("\x04\x06ab", [2]),
        ("ab\x04", [0]),
        ("\x04", []),
        ("a\U00040000b", [0, 1, 1, 1, 2]),
        ("<|im_end|>\x04<|im_end|>a", [0, 11, 21]),
    ],
)
def test_offsets_count_what_the_vocabulary_lacks(default_codec: TextCodec, prompt: str, places: list[int]):
    details = TokenDetails(DetailOptions(default_codec, logprobs="completion"))
    ids = default_codec.encode(prompt)
    echo = Echo(prompt, tuple(ids), default_codec.dropped(prompt, ids))
    details.add(Delta((), "", (), prompt_logprobs=(None,) * len(ids)), echo)
    details.add(Delta((ids or [2])[:1], "", (), logprobs=(TokenLogprob(-1.0),)))  # type: ignore[arg-type]
    assert details.take()["logprobs"]["text_offset"] == [*places, len(prompt)]


def test_offsets_behind_an_unknown_token():
    codec = TextCodec(tiny_tokenizer(), frozenset({2}))
    ids = codec.encode("aébé")
    details = TokenDetails(DetailOptions(codec, logprobs="completion"))
    echo = Echo("aébé", tuple(ids), codec.dropped("aébé", ids))
    details.add(Delta((), "", (), prompt_logprobs=(None,) * len(ids)), echo)
    assert details.take()["logprobs"]["text_offset"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("top", "likeliest"),
    [
        ((), {"b": -3.0}),
        (((97, -1.0),), {"a": -1.0, "b": -3.0}),
        (((97, -1.0), (98, -3.0)), {"a": -1.0, "b": -3.0}),
        (((98, -3.0), (97, -4.0)), {"b": -3.0, "a": -4.0}),
    ],
)
def test_the_token_itself_is_among_the_likeliest(top: tuple[tuple[int, float], ...], likeliest: dict[str, float]):
    details = TokenDetails(DetailOptions(cast(TextCodec, SyntheticCodec()), logprobs="completion"))
    details.add(Delta((98,), "b", ("target",), logprobs=(TokenLogprob(-3.0, top),)))
    assert details.take()["logprobs"]["top_logprobs"] == [likeliest]


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_a_token_that_cannot_be_has_a_number_that_json_can_write(kind: Literal["chat", "completion"]):
    details = TokenDetails(DetailOptions(cast(TextCodec, SyntheticCodec()), logprobs=kind))
    score = TokenLogprob(float("-inf"), ((97, 0.0), (99, float("-inf"))))
    details.add(Delta((98,), "b", ("target",), logprobs=(score,)))
    found = details.take()["logprobs"]
    if kind == "completion":
        assert found["token_logprobs"] == [-9999.0]
        assert found["top_logprobs"] == [{"a": 0.0, "c": -9999.0, "b": -9999.0}]
    else:
        (entry,) = found["content"]
        assert entry["logprob"] == -9999.0
        assert [(other["token"], other["logprob"]) for other in entry["top_logprobs"]] == [("a", 0.0), ("c", -9999.0)]
