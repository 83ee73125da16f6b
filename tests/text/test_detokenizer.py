"""Streamed text is the whole text, whatever the ids and however they come."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.text.codec import TextCodec
from app.text.detokenizer import ByteDetokenizer, WindowDetokenizer
from tests.text.samples import BUILDERS, HARD, TEXTS, tokenizer


def stream(codec: TextCodec, ids: Sequence[int], tail: Sequence[int] = ()) -> list[str]:
    detokenizer = codec.detokenizer(tail)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@pytest.mark.parametrize("name", list(BUILDERS))
@given(data=st.data())
@settings(max_examples=150)
def test_joined_pieces_are_the_decoded_text(name: str, data: st.DataObject) -> None:
    codec = TextCodec(tokenizer(name), frozenset({2}))
    ids = data.draw(st.lists(st.integers(0, codec.vocab_size - 1), max_size=30))  # special and added ones among them
    assert "".join(stream(codec, ids)) == codec.decode(ids)


@pytest.mark.parametrize("name", list(BUILDERS))
@given(data=st.data())
@settings(max_examples=150)
def test_with_a_prompt_tail_they_are_what_the_tail_does_not_hold(name: str, data: st.DataObject) -> None:
    codec = TextCodec(tokenizer(name), frozenset({2}))
    token_ids = st.integers(0, codec.vocab_size - 1)
    tail, ids = data.draw(st.lists(token_ids, max_size=6)), data.draw(st.lists(token_ids, max_size=12))
    before, whole = codec.decode(tail), codec.decode(tail + ids)
    assume(whole.startswith(before))  # else the answer completes a character that the prompt broke off in
    assert "".join(stream(codec, ids, tail)) == whole[len(before) :]


@pytest.mark.parametrize("answer", [[], [68], [163], [3 + 0x90]])
def test_a_prompt_that_ends_in_half_of_a_surrogate_owes_two_replacements(answer: list[int]) -> None:
    codec = TextCodec(tokenizer("gemma"), frozenset({2}))
    tail = [3 + 0xED, 3 + 0xA0]
    assert codec.decode(tail) == "\ufffd\ufffd"
    assert "".join(stream(codec, answer, tail)) == codec.decode(tail + answer)[2:]


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece", "gemma", "metaspace", "word_piece"])
def test_decode_agrees_with_the_tokenizers_own_decoder(name: str) -> None:
    codec = TextCodec(tokenizer(name), frozenset({2}))
    backend = codec.tokenizer.backend_tokenizer
    rng = random.Random(0)
    for text in TEXTS:
        ids = codec.encode(text)
        assert codec.decode(ids) == backend.decode(ids, skip_special_tokens=True)
        assert codec.decode(ids, skip_special_tokens=False) == backend.decode(ids, skip_special_tokens=False)
    compared = 0
    for _ in range(300):
        ids = [rng.randrange(codec.vocab_size) for _ in range(rng.randrange(12))]
        text = backend.decode(ids, skip_special_tokens=True)
        if name not in ("sentencepiece", "gemma") or "�" not in text:  # there one bad byte spoils its whole run
            assert codec.decode(ids) == text
            compared += 1
    assert compared > 30


@pytest.mark.parametrize("text", TEXTS)
def test_real_tokenizer_round_trip_without_a_replacement_character(default_codec: TextCodec, text: str) -> None:
    ids = default_codec.encode(text)
    pieces = stream(default_codec, ids)
    assert default_codec.decode(ids) == text
    assert "".join(pieces) == text
    assert "�" in text or not any("�" in piece for piece in pieces)


@given(data=st.data())
@settings(max_examples=100)
def test_real_tokenizer_any_ids(default_codec: TextCodec, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, default_codec.vocab_size - 1), max_size=40))
    assert "".join(stream(default_codec, ids)) == default_codec.decode(ids)
    assert default_codec.decode(ids) == default_codec.tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=True)


def test_special_tokens_inside_a_character_do_not_break_it(default_codec: TextCodec) -> None:
    ids = default_codec.encode(HARD)
    with_specials = [token_id for one in ids for token_id in (one, 2)]
    assert "".join(stream(default_codec, with_specials)) == HARD


def test_a_lone_byte_is_released_as_soon_as_it_is_hopeless() -> None:
    codec = TextCodec(tokenizer("byte_level"), frozenset({2}))
    letter = codec.encode("a", add_special_tokens=False)[0]
    opening = codec.tokenizer.convert_tokens_to_ids("Ã")  # the byte C3, which a second one should follow
    assert stream(codec, [opening, letter, letter]) == ["", "�a", "a", ""]
    assert stream(codec, [letter, opening]) == ["a", "", "�"]


def test_leading_space_is_kept_in_a_continuation_and_dropped_at_the_start() -> None:
    codec = TextCodec(tokenizer("sentencepiece"), frozenset({2}))
    ids = codec.encode("a fox")
    space = codec.encode("a a")[-1]
    assert codec.decode([space]) == "a"
    assert "".join(stream(codec, [space])) == "a"
    assert "".join(stream(codec, [space], ids)) == " a"


def test_a_character_broken_by_the_prompt_is_completed() -> None:
    codec = TextCodec(tokenizer("byte_level"), frozenset({2}))
    byte_ids = [next(i for i in range(3, 260) if codec.tokenizer.backend_tokenizer.id_to_token(i) == c) for c in "ðŁĺĢ"]
    assert "".join(stream(codec, byte_ids[2:], byte_ids[:2])) == "😀"
    letter = codec.encode("a", add_special_tokens=False)
    assert "".join(stream(codec, letter, byte_ids[:2])) == "a"
    assert "".join(stream(codec, [], byte_ids[:2])) == ""


def test_cost_per_token_does_not_grow_with_the_text() -> None:
    seen: list[int] = []

    def decode(ids: list[int]) -> str:
        seen.append(len(ids))
        return "".join("�" if token_id == 0 else "x" for token_id in ids)

    window = WindowDetokenizer(decode, skip=frozenset({9}))
    text = "".join(window.push(token_id) for token_id in [1, 9, 0, 1] * 200) + "".join(window.push(0) for _ in range(50))
    assert len(text + window.flush()) == 650
    assert max(seen) <= 3 * WindowDetokenizer.PATIENCE


def test_families_take_the_table_where_they_can() -> None:
    kinds = {name: type(TextCodec(tokenizer(name), frozenset()).detokenizer()) for name in BUILDERS}
    assert kinds.pop("word_piece") is WindowDetokenizer
    assert set(kinds.values()) == {ByteDetokenizer}
