"""docs/parameters.md names the fields that the schemas have, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from app.api.schemas import ChatBody, CompletionBody
from app.settings import Settings

TEXT = (Path(__file__).parents[2] / "docs" / "parameters.md").read_text()
ELSEWHERE = {"model", "messages", "prompt", "stream", "speculative"}  # described with the API itself


def test_every_field_is_described_and_none_is_invented() -> None:
    fields = set(ChatBody.model_fields) | set(CompletionBody.model_fields)
    named = set(re.findall(r"`([a-z_]+)", TEXT))
    described = {name for name in fields if name in named}
    assert fields - described - ELSEWHERE - {"tool_choice", "parallel_tool_calls"} == set()
    table = {name for row in re.findall(r"^\| ((?:`[a-z_.]+`(?:, )?)+)", TEXT, re.M) for name in re.findall(r"`([a-z_]+)", row)}
    assert table <= fields
    settings = {name for name in named if name.startswith(("max_conv", "conversation_"))}
    assert settings <= set(Settings.model_fields)
