"""Data for calibration: what is read, and what is said of data that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.calibration.texts import PARAGRAPH, CalibrationDataError, read_items


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_questions_answers_and_corpora_are_read_in_turn(tmp_path: Path):
    asked = written(tmp_path / "asked.jsonl", '{"turns": ["Why?", "And?"], "answer": "Because."}', "", '{"prompt": "How?"}')
    corpus = written(tmp_path / "corpus.txt", "One.", "", "Two.")
    items = read_items([asked, corpus])
    assert [(item.key, item.prompt, item.text) for item in items] == [
        ("asked/1", "Why?", "Because."),
        ("corpus/1", None, "One.\n\nTwo."),
        ("asked/3", "How?", None),
    ]
    assert read_items([asked, corpus], limit=2) == items[:2]


def test_no_character_of_a_long_text_is_lost(tmp_path: Path):
    text = "abcdefg " * PARAGRAPH
    pieces = [item.text or "" for item in read_items([written(tmp_path / "long.txt", text)])]
    assert len(pieces) > 5 and "".join(pieces) == text
    assert max(map(len, pieces)) <= PARAGRAPH


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b" \n ", "empty"),
        (b'{"turns": ["ok"]}\n\xff\xfe', "line 2: not UTF-8"),
        (b'{"turns": ["ok"]}\nnonsense', "line 2: not JSON"),
        (b"[1]", "line 1: not a JSON object"),
        (b'{"turns": []}', "line 1: needs a text"),
        (b'{"text": "\\ud800"}', "line 1: a text holds half a surrogate pair"),
        (b'{"turns": [1]}', "line 1: needs a text"),
    ],
)
def test_bad_data_is_named_by_file_and_line(tmp_path: Path, content: bytes, said: str):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(CalibrationDataError, match=said) as caught:
        read_items([path])
    assert "bad.jsonl" in str(caught.value) and "nonsense" not in str(caught.value)


def test_missing_and_ambiguous_files_are_refused(tmp_path: Path):
    with pytest.raises(CalibrationDataError, match=r"absent.jsonl cannot be read"):
        read_items([tmp_path / "absent.jsonl"])
    (tmp_path / "other").mkdir()
    twins = [written(folder / "same.txt", "text") for folder in (tmp_path, tmp_path / "other")]
    with pytest.raises(CalibrationDataError, match="same name"):
        read_items(twins)
