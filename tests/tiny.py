"""A tiny engine on a random model and a one-character tokenizer: everything that can be shown without meaning."""

from __future__ import annotations

import string
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from app.engine.engine import Engine, EngineConfig
from app.engine.models.loading import LoadedModel
from app.text.codec import TextCodec
from tests.models import VOCABULARY, build

SPECIAL = ["<pad>", "<s>", "</s>"]
CHAT_TEMPLATE = "{% for message in messages %}{{ message.role[0] }}:{{ message.content }};{% endfor %}a:"


def tokenizer() -> PreTrainedTokenizerFast:
    """97 ids: three special ones and 94 characters, one per token."""
    characters = [c for c in string.printable if c.isprintable()][: VOCABULARY - len(SPECIAL)]
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *characters])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def loaded(
    name: str = "llama",
    seed: int = 0,
    eos: frozenset[int] = frozenset({2}),
    max_context: int = 256,
    chat_template: str | None = None,
) -> LoadedModel:
    model = build(name, seed)
    return LoadedModel(
        model=model,
        codec=TextCodec(tokenizer(), eos, chat_template),
        name="tiny",
        config=model.config,
        eos_ids=eos,
        max_context=max_context,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )


@contextmanager
def tiny_engine(
    name: str = "llama", *, eos: frozenset[int] = frozenset({2}), seed: int = 0, **settings: Any
) -> Iterator[Engine]:
    """An engine that is closed, and whose worker has ended, when the block is left."""
    observer, draft = settings.pop("observer", None), settings.pop("draft", None)
    config = EngineConfig(**{"max_nodes": 24, "prior_rows": 0, **settings})
    with Engine(loaded(name, seed, eos), config, observer=observer, draft=draft) as engine:
        yield engine
    assert not engine.status().alive
