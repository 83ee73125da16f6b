"""Reading question files, and spreading a limit over categories."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import BenchError
from bench.questions import Question, read_questions, spread
from tests.bench.support import write_questions

GOOD = '{"question_id": 1, "category": "qa", "turns": ["a"]}'


def test_files_are_read_in_order_and_ids_are_told_apart(tmp_path: Path) -> None:
    first = write_questions(tmp_path / "one.jsonl", ["qa", "math"], turns=("x", "y"))
    second = write_questions(tmp_path / "two.jsonl", ["qa"])
    questions = read_questions([first, second])
    assert [question.key for question in questions] == ["one/1", "one/2", "two/1"]
    assert questions[0] == Question("one/1", "qa", ("x1", "y1"))


def test_other_members_blank_lines_and_text_ids_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(f'{GOOD[:-1]}, "reference": [1]}}\n\n' + GOOD.replace("1", '"b"') + "\n", encoding="utf-8")
    assert [question.key for question in read_questions([path])] == ["q/1", "q/b"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "deep"),
        ("[1]", "object"),
        ('{"category": "qa", "turns": ["a"]}', "question_id"),
        ('{"question_id": true, "category": "qa", "turns": ["a"]}', "question_id"),
        ('{"question_id": 2, "turns": ["a"]}', "category"),
        ('{"question_id": 2, "category": "qa"}', "turns"),
        ('{"question_id": 2, "category": "qa", "turns": []}', "turns"),
        ('{"question_id": 2, "category": "qa", "turns": [3]}', "turns"),
        ('{"question_id": 2, "category": "qa", "turns": "text"}', "turns"),
        ('{"question_id": 2, "category": "qa", "turns": ["\\udfff"]}', "surrogate"),
        (GOOD, "there before"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{GOOD}\n{line}\n", encoding="utf-8")
    with pytest.raises(BenchError, match=said) as raised:
        read_questions([path])
    assert f"{path}, line 2" in str(raised.value)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(GOOD.encode() + b"\n\xff\n")
    with pytest.raises(BenchError, match=r"line 2: not UTF-8"):
        read_questions([path])


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"none\.jsonl cannot be read"):
        read_questions([tmp_path / "none.jsonl"])
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(BenchError, match="no question"):
        read_questions([tmp_path / "empty.jsonl"])


def test_a_limit_takes_from_each_category_in_turn() -> None:
    questions = [Question(f"q/{number}", category, ("x",)) for number, category in enumerate("aaaabbc")]
    assert [question.key for question in spread(questions, 5)] == ["q/0", "q/4", "q/6", "q/1", "q/5"]
    assert [question.category for question in spread(questions, None)] == list("abcabaa")


@given(st.lists(st.sampled_from("abcd"), max_size=40), st.integers(1, 50))
def test_no_category_is_ahead_of_one_that_has_questions_left(categories: list[str], limit: int) -> None:
    questions = [Question(str(number), category, ("x",)) for number, category in enumerate(categories)]
    chosen = spread(questions, limit)
    assert len(chosen) == min(limit, len(questions)) == len(set(chosen))
    taken, there = Counter(q.category for q in chosen), Counter(categories)
    for one in there:
        for other in there:
            assert taken[one] >= min(there[one], taken[other] - 1)
