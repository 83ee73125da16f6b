"""Tiny engines that can chat."""

from __future__ import annotations

from dataclasses import replace

from app.engine.correction import CsdConfig
from app.engine.engine import Engine, EngineConfig
from app.engine.models.loading import LoadedModel
from app.text.codec import TextCodec
from tests.engine.drafting import CHEAP, FLAT
from tests.tiny import loaded, tokenizer

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def chatting(draft: LoadedModel | None = None, csd: CsdConfig | None = None) -> Engine:
    """An engine on a random model with a chat template; the answer ends only at its token limit."""
    model = replace(loaded(eos=frozenset()), codec=TextCodec(tokenizer(), frozenset(), TEMPLATE))
    config = EngineConfig(
        max_nodes=24, prior_rows=0, cost_curve=FLAT, draft_curve=CHEAP if draft else (), csd=csd or CsdConfig()
    )
    return Engine(model, config, draft=draft)
