"""docs/library.md: every block of code runs as it stands, on a tiny model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from app.engine.engine import Engine, EngineConfig
from tests.tiny import CHAT_TEMPLATE, loaded, tokenizer

PAGE = Path(__file__).parents[2] / "docs/library.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def from_pretrained(target: str, config: EngineConfig | None = None, **_: Any) -> Engine:
    assert target == "smollm2"
    return Engine(loaded(eos=frozenset(), chat_template=CHAT_TEMPLATE), config or EngineConfig())


def engine_block(place: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(Engine, "from_pretrained", from_pretrained)
    exec(compile(BLOCKS[place], f"{PAGE.name} block {place}", "exec"), {})
    return capsys.readouterr().out


def test_the_page_has_the_blocks_that_are_tested() -> None:
    assert len(BLOCKS) == 5


def test_generate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = engine_block(0, monkeypatch, capsys)
    assert "40 tokens in" in shown
    assert "plain decoding agrees: True" in shown


def test_stream(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = engine_block(1, monkeypatch, capsys)
    assert shown.endswith("\nended by length\n")
    assert len(shown) > 40


def test_many_prompts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(engine_block(2, monkeypatch, capsys).splitlines()) == 3


def test_conversations(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.fullmatch(r"(\d+) of (\d+) prompt tokens were kept\n", engine_block(3, monkeypatch, capsys))
    assert shown
    assert int(shown[2]) - int(shown[1]) == 5  # the answer's last token and " And"


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_the_drafter_in_a_plain_loop(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = loaded(name).model
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    names: dict[str, Any] = {"MODEL": str(tmp_path)}
    exec(compile(BLOCKS[4], PAGE.name, "exec"), names)
    assert "48 tokens in" in capsys.readouterr().out
    prompt, tokens = names["prompt"], names["tokens"]
    assert tokens == greedily(model, prompt, len(tokens))
    assert names["steps"] < len(tokens) - 1  # something was accepted


@torch.inference_mode()
def greedily(model: Any, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens without a cache: what the loop must reproduce."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(model(input_ids=torch.tensor([text])).logits[0, -1].argmax()))
    return text[len(prompt) :]
