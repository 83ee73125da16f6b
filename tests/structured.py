"""A tiny engine that can write JSON: a random model over characters and a few longer tokens, and a template with tools."""

from __future__ import annotations

import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from app.engine.engine import Engine, EngineConfig
from app.engine.models.loading import LoadedModel
from app.text.codec import TextCodec
from tests.models import VOCABULARY
from tests.tiny import SPECIAL, loaded

LONGER = ['{"', '": ', ', "', '"}', '"]', "true", "12", "ab", "e"]
EOS = frozenset({1, 2})
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool.function.name }} {% endfor %}{# <tool_call> #}{% endif %}"
    "{% for message in messages %}{{ message.role[0] }}:{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{% endfor %}\n{% endfor %}a:"
)


def json_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """97 ids: three special ones, tokens of several characters, and what JSON needs, one character each."""
    characters = " \n" + '{}[]":,.-+_<>/\\' + string.digits + string.ascii_letters + "!?()=*#'&;"
    words = [*SPECIAL, *LONGER, *characters.replace("e", "")][:VOCABULARY]
    backend = Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=template
    )


def json_loaded(seed: int = 0, template: str | None = TEMPLATE) -> LoadedModel:
    return replace(loaded("llama", seed, EOS), codec=TextCodec(json_tokenizer(template), EOS))


@contextmanager
def json_engine(seed: int = 0, template: str | None = TEMPLATE, **settings: Any) -> Iterator[Engine]:
    draft = settings.pop("draft", None)
    config = EngineConfig(**{"max_nodes": 16, "prior_rows": 0, **settings})
    with Engine(json_loaded(seed, template), config, draft=draft) as engine:
        yield engine
