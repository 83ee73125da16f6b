from __future__ import annotations

import pytest

from app.engine.models.loading import load_tokenizer
from app.text.codec import TextCodec
from tests.text.samples import BUILDERS, tokenizer


@pytest.fixture(scope="session")
def default_codec() -> TextCodec:
    """The default model's tokenizer, from the cache (`racer-csd fetch smollm2` fills it)."""
    return TextCodec(load_tokenizer("smollm2"), frozenset({2}))


@pytest.fixture(params=list(BUILDERS), scope="session")
def any_codec(request: pytest.FixtureRequest) -> TextCodec:
    return TextCodec(tokenizer(request.param), frozenset({2}))
