"""Questions: JSON-lines files in Spec-Bench's form, and a limit spread over their categories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.text.surrogates import has_lone_surrogate
from bench.errors import BenchError


@dataclass(frozen=True, slots=True)
class Question:
    """One question. key: file stem and question_id, unique over all files. turns: what the user says, in order."""

    key: str
    category: str
    turns: tuple[str, ...]


def read_questions(paths: Sequence[Path]) -> list[Question]:
    """All questions of the files, in order. Raises BenchError, which names file and line."""
    questions: list[Question] = []
    seen: dict[str, str] = {}
    for path in paths:
        for number, line in enumerate(_lines(path), start=1):
            if not line.strip():
                continue
            place = f"{path}, line {number}"
            question = _question(line, path.stem, place)
            if question.key in seen:
                raise BenchError(f"{place}: question {question.key} was there before ({seen[question.key]})")
            seen[question.key] = place
            questions.append(question)
    if not questions:
        raise BenchError(f"no question in {', '.join(map(str, paths)) or 'no file'}")
    return questions


def spread(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """The first `limit` questions taken in turn from each category; all of them, in the same order, for None.

    Categories stand in the order of their first question, and so do the questions of one category.
    """
    by_category: dict[str, list[Question]] = {}
    for question in questions:
        by_category.setdefault(question.category, []).append(question)
    longest = max(map(len, by_category.values()), default=0)
    order = [group[index] for index in range(longest) for group in by_category.values() if index < len(group)]
    return order[:limit]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BenchError(f"{path}, line {line}: not UTF-8 text") from error


def _question(line: str, stem: str, place: str) -> Question:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise BenchError(f"{place}: not JSON ({error})") from error
    except RecursionError as error:
        raise BenchError(f"{place}: nested too deep") from error
    if not isinstance(entry, dict):
        raise BenchError(f"{place}: not a JSON object")
    if has_lone_surrogate(entry):
        raise BenchError(f"{place}: a text holds half a surrogate pair, which is no character")
    identity, category, turns = entry.get("question_id"), entry.get("category"), entry.get("turns")
    if isinstance(identity, bool) or not isinstance(identity, int | str):
        raise BenchError(f"{place}: question_id must be a number or a text")
    if not isinstance(category, str) or not category:
        raise BenchError(f"{place}: category must be a text")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise BenchError(f"{place}: turns must be a list of texts, at least one")
    return Question(f"{stem}/{identity}", category, tuple(turns))
