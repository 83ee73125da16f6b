"""LangChain's OpenAI client, unmodified."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI, OpenAI

from tests.api.support import served
from tests.synthetic import SyntheticEngine

MESSAGES = [("system", "Be brief."), ("user", "Hello")]


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with served(SyntheticEngine(), api_keys="key") as url:
        yield {"base_url": f"{url}/v1", "api_key": "key", "model": "synthetic", "temperature": 0, "max_retries": 0}


def test_whole_and_streamed_answers_are_the_same(options: dict[str, Any]) -> None:
    chat = ChatOpenAI(**{**options, "max_tokens": 50}, stream_usage=True)
    whole = chat.invoke(MESSAGES)
    chunks = list(chat.stream(MESSAGES))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert total.text == whole.text != ""
    assert total.usage_metadata == whole.usage_metadata is not None
    assert whole.response_metadata["finish_reason"] == total.response_metadata["finish_reason"] == "stop"


def test_completions_and_batches(options: dict[str, Any]) -> None:
    text = OpenAI(**options, max_tokens=20)
    assert text.invoke("Hello") == "".join(text.stream("Hello")) != ""
    assert len(set(text.batch(["a", "b", "a"]))) == 2


async def _streamed(chat: ChatOpenAI) -> str:
    return "".join([chunk.text async for chunk in chat.astream(MESSAGES)])


def test_asynchronous_streams(options: dict[str, Any]) -> None:
    import asyncio

    chat = ChatOpenAI(**options)
    assert asyncio.run(_streamed(chat)) == chat.invoke(MESSAGES).text


def test_refusals_are_openai_s_errors(options: dict[str, Any]) -> None:
    with pytest.raises(openai.AuthenticationError):
        ChatOpenAI(**{**options, "api_key": "wrong"}).invoke(MESSAGES)
    with pytest.raises(openai.BadRequestError):
        ChatOpenAI(**options, top_p=2.0).invoke(MESSAGES)
