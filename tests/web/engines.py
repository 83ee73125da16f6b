"""Tiny engines that can chat."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.engine.engine import Engine, EngineConfig
from app.text.codec import TextCodec
from tests.engine.drafting import CHEAP, FLAT
from tests.tiny import loaded, tokenizer

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def chatting(**given: Any) -> Engine:
    """An engine on a random model with a chat template; the answer ends with its budget alone. given: draft, settings."""
    model = replace(loaded(eos=frozenset()), codec=TextCodec(tokenizer(), frozenset(), TEMPLATE))
    draft = given.pop("draft", None)
    curves = {"cost_curve": FLAT, "draft_curve": CHEAP if draft else ()}
    return Engine(model, EngineConfig(max_nodes=24, prior_rows=0, **curves, **given), draft=draft)
