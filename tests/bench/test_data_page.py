"""The lines that docs/data.md shows are lines that the commands take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.calibration.texts import read_items
from bench.quality.tasks import read_problems
from bench.questions import read_questions

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


@pytest.fixture
def lines(tmp_path: Path) -> list[Path]:
    """One file per sample."""
    paths = []
    for number, sample in enumerate(re.findall(r"```json\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)):
        path = tmp_path / f"sample{number}.jsonl"
        path.write_text(sample + "\n", encoding="utf-8")
        paths.append(path)
    return paths


def test_each_sample_is_taken_by_what_it_is_for(lines: list[Path]) -> None:
    asked, reference, answer, code, *texts = lines
    assert len(read_questions([asked])[0].turns) == 2
    assert [question.category for question in read_questions([reference, answer])] == ["math", "math"]
    eggs, same, double = read_problems([reference, answer, code])
    assert eggs.right("3 times 6 = 18 eggs") is same.right("That makes \\boxed{18}.") is True
    assert double.right("```python\ndef double(x):\n    return 2 * x\n```") is True
    assert [(item.prompt is None, item.text is None) for item in read_items(texts)] == [(False, False), (True, False)]
