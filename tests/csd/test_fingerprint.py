"""A fingerprint changes with each of its parts and with nothing else."""

import random
import string

import pytest

from csd import fingerprint as module
from csd.fingerprint import fingerprint, vocabulary_hash

VOCABULARY = {"a": 0, "b": 1, "äß": 2, "\ud800": 3}


def test_form_and_stability():
    first = fingerprint("target", "draft", VOCABULARY)
    assert len(first) == 32
    assert set(first) <= set(string.hexdigits.lower())
    assert first == "6ed24c7d41b5b869cd3364a0ecee6490"


def test_order_and_form_of_the_vocabulary_do_not_matter():
    pairs = [(token, text) for text, token in VOCABULARY.items()]
    random.Random(5).shuffle(pairs)
    shuffled = {text: token for token, text in pairs}
    assert fingerprint("t", "d", VOCABULARY) == fingerprint("t", "d", pairs) == fingerprint("t", "d", shuffled)


@pytest.mark.parametrize(
    "parts",
    [
        ("target2", "draft", VOCABULARY),
        ("target", "draft2", VOCABULARY),
        ("targetd", "raft", VOCABULARY),
        ("draft", "target", VOCABULARY),
        ("target", "draft", {**VOCABULARY, "c": 4}),
        ("target", "draft", {"a": 1, "b": 0, "äß": 2, "\ud800": 3}),
        ("target", "draft", {}),
    ],
)
def test_every_part_matters(parts):
    assert fingerprint(*parts) != fingerprint("target", "draft", VOCABULARY)


def test_the_schema_matters(monkeypatch):
    before = fingerprint("target", "draft", VOCABULARY)
    monkeypatch.setattr(module, "SCHEMA", 2)
    assert fingerprint("target", "draft", VOCABULARY) != before


def test_strings_do_not_run_together():
    assert vocabulary_hash([(1, "a"), (2, "b")]) != vocabulary_hash([(1, "a2 1:b")])
    assert vocabulary_hash([(1, "1:a")]) != vocabulary_hash([(11, "a")])
