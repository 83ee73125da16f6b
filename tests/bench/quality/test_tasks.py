"""Problems are read, solutions put together, answers found and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.quality.tasks import Problem, equal_answers, final_answer, read_problems

DOUBLE = {
    "task_id": "X/1",
    "prompt": 'from typing import List\n\ndef double(x: int) -> int:\n    """Twice x."""\n',
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


def problem(tmp_path: Path, entry: object) -> Problem:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(entry))
    return read_problems([path])[0]


@pytest.mark.parametrize(
    "reply",
    [
        "Sure!\n```python\ndef double(x: int) -> int:\n    return 2 * x\n```\nDone.",
        "```Python3\ndef double(x):\n    return x + x\n```",
        "```\nfrom typing import List\ndef double(x):\n    return x + x\n```",
        "def double(x):\n    return 2 * x",
        "```python\nfrom __future__ import annotations\n\ndef double(x: Unknown):\n    return 2 * x\n```",
        "    return 2 * x",
        "```python\nprint('an example')\n```\n```python\ndef double(x): return 2 * x",
    ],
)
def test_a_right_function_passes_however_it_is_wrapped(tmp_path: Path, reply: str):
    assert problem(tmp_path, DOUBLE).right(reply) is True


@pytest.mark.parametrize("language", ["python", "Python3", "", "py"])
def test_code_is_complete_where_its_block_ends_and_not_where_it_begins(tmp_path: Path, language: str):
    """What comes after the block is not waited for, and the block's own beginning is no end. (A first block without a
    language, after a sentence, is cut: no model asked for Python writes one.)"""
    one = problem(tmp_path, DOUBLE)
    opening = f"Sure:\n\n```{language}\n" if language else "```\n"
    reply = f"{opening}def double(x: int) -> int:\n    return 2 * x\n```\nIt doubles x."
    (stop,) = one.stop
    code, _, talk = reply.partition(stop)
    assert talk == "It doubles x." and one.right(code) is True
    assert Problem("p/1", "p", "answer", "2 + 2?", "4").stop == ()


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I cannot.",
        "```python\ndef double(x): return 1\nif __name__ == '__main__': exit()\n```",
        "```python\ndef double(x): return 3 * x\n```",
        "```python\ndef triple(x)",
    ],
)
def test_a_wrong_one_does_not(tmp_path: Path, reply: str):
    assert problem(tmp_path, DOUBLE).right(reply) is False


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("So 3 + 4 = 7.\nThe answer is $1,234.", "1,234"),
        ("First 5, then 12", "12"),
        ("\\boxed{3} no, \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("#### 18", "18"),
        ("The answer is 3 times 4 = 12", "12"),
        ("The answer is 7, because 3 + 4 = 7 and 2 + 2 = 4.", "7"),
        ("The answer is 5/8 of it, or 62 %", "5/8"),
        ("So the answer is \\frac12.", "\\frac12"),
        ("That makes 1{,}000 in all.", "1{,}000"),
        ("nothing", ""),
    ],
)
def test_the_final_answer_is_found(reply: str, answer: str):
    assert final_answer(reply) == answer


def test_answers_are_compared_as_numbers_where_they_are():
    assert equal_answers("1,234.00", "1234")
    assert equal_answers("\\frac{1}{2}", "0.5")
    assert equal_answers("18.", "18")
    assert equal_answers("5/8", "0.625") and equal_answers("5/8", "\\frac58") and equal_answers("-\\tfrac{1}2", "-0.5")
    assert equal_answers("1{,}000", "1,000") and equal_answers("90^\\circ", "90") and equal_answers("90°", "90^{\\circ}")
    assert not equal_answers("\\frac12", "12")
    assert equal_answers("x^2 + 1", "x^2+1")
    assert not equal_answers("", "18")
    assert not equal_answers("17", "18")


def test_questions_with_a_reference_have_an_answer_and_others_are_open(tmp_path: Path):
    asked = {"question_id": 7, "turns": ["How many?"]}
    assert problem(tmp_path, {**asked, "reference": ["18"]}).right("It is 18.") is True
    assert problem(tmp_path, {**asked, "reference": "work\n#### 1,018"}).reference == "1,018"
    assert problem(tmp_path, asked).kind == "open"
    assert problem(tmp_path, {**asked, "reference": ["In 1913 they came home."]}).kind == "open"
    for answer in ("-1,234.5", "5/8", "(1, 2)", "2x^2 + 1", "\\text{east}", "50%"):
        assert problem(tmp_path, {**asked, "reference": answer}).kind == "answer"


def test_parts_of_a_file_do_not_overlap(tmp_path: Path):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps({"question_id": n, "turns": ["?"]}) for n in range(10)))
    first, last = read_problems([path], (0.0, 2 / 3)), read_problems([path], (2 / 3, 1.0))
    assert [one.key for one in first + last] == [f"data/{n}" for n in range(10)]
    assert len(first) == 7


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[]", '{"question_id": 1, "turns": ["\\ud800"]}', '{"question_id": 1}', '{"entry_point": "f", "prompt": "p"}'],
)
def test_bad_lines_are_named(tmp_path: Path, line: str):
    path = tmp_path / "data.jsonl"
    path.write_text(line)
    with pytest.raises(BenchError, match=r"data.jsonl, line 1"):
        read_problems([path])


def test_a_problem_that_is_there_twice_is_refused(tmp_path: Path):
    path = tmp_path / "data.jsonl"
    path.write_text(2 * (json.dumps({"question_id": 1, "turns": ["?"]}) + "\n"))
    with pytest.raises(BenchError, match="data/1 is there twice"):
        read_problems([path])
