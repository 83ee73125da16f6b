"""Vocabularies of target and draft are compared by content; a misfit is refused with its first difference."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from app.engine.errors import ModelLoadError
from app.engine.models.vocabulary import share_vocabulary
from app.text.codec import TextCodec
from tests.engine.drafting import pair
from tests.tiny import SPECIAL, loaded

LETTERS = [*SPECIAL, *string.ascii_letters]


def codec(tokens: Sequence[str], eos: Sequence[int] = (2,), special: Sequence[str] = SPECIAL) -> TextCodec:
    backend = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens) if token}, unk_token=tokens[0]))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(list(special))
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=backend), frozenset(eos))


def swapped(first: int, second: int) -> list[str]:
    tokens = list(LETTERS)
    tokens[first], tokens[second] = tokens[second], tokens[first]
    return tokens


def test_equal_vocabularies_share_every_id_whatever_the_padding():
    shared = share_vocabulary(codec(LETTERS), codec(LETTERS), 64, 128)
    assert shared.size == len(LETTERS)
    assert shared.complete
    assert shared.holds(range(len(LETTERS)))
    assert not shared.holds([len(LETTERS)])
    assert not shared.holds([-1])


def test_the_first_difference_is_named():
    with pytest.raises(ModelLoadError, match=r"token 10 is 'h' in the target and 'm' in the draft"):
        share_vocabulary(codec(LETTERS), codec(swapped(15, 10)), 64, 64)


def test_ids_of_one_side_are_not_shared():
    longer = [*LETTERS, "0", "1"]
    for ours, theirs in ((LETTERS, longer), (longer, LETTERS)):
        shared = share_vocabulary(codec(ours), codec(theirs), 64, 64)
        assert shared.size == len(LETTERS)
    holes = [token if index != 9 else "" for index, token in enumerate(LETTERS)]
    shared = share_vocabulary(codec(LETTERS), codec(holes), 64, 64)
    assert not shared.complete
    assert not shared.holds([9])
    assert shared.holds([8, 10])
    assert share_vocabulary(codec(LETTERS), codec(LETTERS), 64, 20).size == 20  # a model with fewer rows than its tokenizer


def test_special_and_end_tokens_must_agree():
    with pytest.raises(ModelLoadError, match=r"token 5 \('c'\) is a special token in the draft only"):
        share_vocabulary(codec(LETTERS), codec(LETTERS, special=[*SPECIAL, "c"]), 64, 64)
    with pytest.raises(ModelLoadError, match="ends its answers with token 1, the target with token 2"):
        share_vocabulary(codec(LETTERS), codec(LETTERS, eos=(1,)), 64, 64)
    assert share_vocabulary(codec(LETTERS), codec(LETTERS, eos=(1, 2)), 64, 64).complete


def test_an_engine_does_not_start_with_another_vocabulary():
    draft = replace(loaded(), codec=codec([*SPECIAL, *reversed(string.ascii_letters)]))
    with pytest.raises(ModelLoadError, match="token 3 is '0' in the target and 'Z' in the draft"), pair(draft):
        pass


def test_a_draft_that_cannot_be_rolled_back_is_refused():
    with pytest.raises(ModelLoadError, match="cannot be rolled back"), pair(loaded("qwen3-next", eos=frozenset())):
        pass
