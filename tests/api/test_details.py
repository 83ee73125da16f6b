"""Where the tokens of a completion stand in its text, with tokenizers that split characters and add tokens of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.api.details import Asked, Echo, TokenDetails
from app.engine.events import Delta, TokenLogprob
from app.text.codec import TextCodec
from tests.text.samples import HARD, byte_level, sentencepiece

ANSWER = "the 東 end"


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
@pytest.mark.parametrize("prompt", [HARD, "the 京 <s>", None])
def test_offsets_point_into_the_text(kind: Callable[[], Any], prompt: str | None):
    codec = TextCodec(kind(), frozenset({2}))
    details = TokenDetails(Asked(codec, logprobs="completion"))
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
