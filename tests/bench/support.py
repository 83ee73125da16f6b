"""What the tests of the benchmark share: question files, results made by hand, a tiny model directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.modes import parse_modes
from bench.plan import Plan
from bench.result import Measurement, Result
from tests.models import build
from tests.tiny import tokenizer

FLAT = ((1, 0.01), (128, 0.01))  # a cost curve on which every node pays


def write_questions(path: Path, categories: Iterable[str], turns: Sequence[str] = ("abcabcabcab",)) -> Path:
    """A file with one question per category named, numbered from 1."""
    lines = [
        json.dumps({"question_id": number, "category": category, "turns": [f"{turn}{number}" for turn in turns]})
        for number, category in enumerate(categories, start=1)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def plan(data: Path, modes: str = "plain,paper:8", **changes: Any) -> Plan:
    return Plan(**{"target": "tiny", "data": (data,), "modes": parse_modes([modes]), "max_tokens": 12, **changes})


def result(question: str, mode: str, tokens: Sequence[int], seconds: float, *, turn: int = 0, category: str = "qa") -> Result:
    """An answer without a prefill worth telling: 10 % of its time; two tokens a step."""
    steps = (len(tokens) - 1) // 2
    measured = Measurement(
        tokens=tuple(tokens),
        seconds=seconds,
        decode_seconds=0.9 * seconds,
        steps=steps,
        step_tokens=len(tokens) - 1,
        drafted=4 * steps,
        histogram=(0, steps),
        sources={"retrieval": steps, "copy_logit": 0, "draft_model": 0, "target": steps + 1},
        phase_seconds={"draft": 0.1 * seconds, "forward": 0.6 * seconds, "walk": 0.0, "commit": 0.0, "learn": 0.0},
        nodes={5: (steps, 0.6 * seconds)},
        peak_bytes=1000,
    )
    return Result(question, category, turn, mode, 0, 7, measured)


def save_tiny_model(directory: Path) -> Path:
    """A model directory that any loader takes: random weights, one character a token."""
    model = build("llama")
    model.save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return directory
