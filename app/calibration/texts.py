"""What calibration reads: questions with or without answers, JSON lines with a text, or plain text files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.text.surrogates import has_lone_surrogate

ANSWERS = ("answer", "response", "completion", "canonical_solution")
PARAGRAPH = 4_000  # characters of a plain text that are read as one piece, about


class CalibrationDataError(Exception):
    """Data that cannot be read; the message names file and line, never the content."""


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of data. key: file stem and place. prompt: what a user says, or None. text: the answer or the corpus text;
    None where there is only a question."""

    key: str
    prompt: str | None
    text: str | None


def read_items(paths: Sequence[Path], limit: int | None = None, part: tuple[float, float] = (0.0, 1.0)) -> list[Item]:
    """The pieces of all files, in order, at most `limit`, taken from the files in turn. Raises CalibrationDataError.

    part: fractions of each file between which its pieces are taken.
    """
    groups = []
    for path in paths:
        whole = list(_read(path))
        groups.append(whole[round(part[0] * len(whole)) : round(part[1] * len(whole))])
    keys = [item.key for group in groups for item in group]
    if len(set(keys)) != len(keys):
        raise CalibrationDataError("two of the files have the same name and hold the same places; rename one")
    longest = max(map(len, groups), default=0)
    items = [group[index] for index in range(longest) for group in groups if index < len(group)]
    if not items:
        raise CalibrationDataError(f"nothing to read in {', '.join(map(str, paths)) or 'no file'}")
    return items[:limit]


def _read(path: Path) -> Iterator[Item]:
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CalibrationDataError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from error
    except UnicodeDecodeError as error:
        place = f"{path}, line {1 + error.object.count(bytes([10]), 0, error.start)}"
        raise CalibrationDataError(f"{place}: not UTF-8 text") from error
    if not content.strip():
        raise CalibrationDataError(f"{path} is empty")
    if path.suffix not in (".jsonl", ".json", ".ndjson"):
        yield from _paragraphs(path, content)
        return
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            yield _item(f"{path.stem}/{number}", line, f"{path}, line {number}")


def _paragraphs(path: Path, content: str) -> Iterator[Item]:
    """Pieces of about PARAGRAPH characters, cut at empty lines where there are any."""
    piece: list[str] = []
    number = size = 0
    for part in content.split("\n\n"):
        for start in range(0, max(1, len(part)), PARAGRAPH):
            piece.append(part[start : start + PARAGRAPH])
            size += len(piece[-1])
            if size >= PARAGRAPH:
                number += 1
                yield Item(f"{path.stem}/{number}", None, "\n\n".join(piece))
                piece, size = [], 0
    if any(part.strip() for part in piece):
        yield Item(f"{path.stem}/{number + 1}", None, "\n\n".join(piece))


def _item(key: str, line: str, place: str) -> Item:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CalibrationDataError(f"{place}: not JSON") from error
    if not isinstance(entry, dict):
        raise CalibrationDataError(f"{place}: not a JSON object")
    if has_lone_surrogate(entry):
        raise CalibrationDataError(f"{place}: a text holds half a surrogate pair, which is no character")
    if isinstance(entry.get("text"), str) and entry["text"]:
        return Item(key, None, entry["text"])
    turns, prompt = entry.get("turns"), entry.get("prompt")
    if isinstance(turns, list) and turns and isinstance(turns[0], str) and turns[0]:
        prompt = turns[0]
    if not isinstance(prompt, str) or not prompt:
        raise CalibrationDataError(f"{place}: needs a text in `turns`, `prompt` or `text`")
    answer = next((entry[name] for name in ANSWERS if isinstance(entry.get(name), str) and entry[name]), None)
    return Item(key, prompt, answer)
