"""Tables as files: whole or not at all, and errors that name the line but never its content."""

import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd.exchange import MAX_LINE, ExchangeError, read, write
from csd.memory import MAX_ID

MARK = "0123abcd" * 4
HEADER = {"format": "racer-ocm", "schema": 1, "fingerprint": MARK, "entries": 2}
FIRST = '{"draft": 1, "target": 2, "count": 3}'
SECOND = '{"draft": 2, "target": 1, "count": 0.5}'

ids = st.integers(0, MAX_ID)
counts = st.floats(0, 2**53, exclude_min=True) | st.integers(1, 2**53)
tables = st.dictionaries(st.tuples(ids, ids).filter(lambda pair: pair[0] != pair[1]), counts, max_size=20)


def text(*lines: str, **header: object) -> bytes:
    return ("\n".join([json.dumps({**HEADER, **header}), *lines]) + "\n").encode()


def error_of(tmp_path, data: bytes) -> str:
    path = tmp_path / "table.jsonl"
    path.write_bytes(data)
    with pytest.raises(ExchangeError) as caught:
        read(path, MARK)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert caught.value.__cause__ is None
    return message.removeprefix(str(path))


@given(tables)
def test_what_is_written_is_read(table):
    entries = [(draft, target, count) for (draft, target), count in table.items()]
    stream = io.BytesIO()
    assert write(stream, MARK, entries) == len(entries)
    stream.seek(0)
    assert read(stream, MARK) == entries


def test_the_form_on_disk(tmp_path):
    path = tmp_path / "table.jsonl"
    assert write(path, MARK, iter([(1, 2, 3.0), (2, 1, 0.5)])) == 2
    assert path.read_bytes() == text(FIRST, SECOND)
    assert read(path, MARK) == [(1, 2, 3.0), (2, 1, 0.5)]
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.jsonl"]


def test_counts_of_equal_tokens_in_an_older_table_are_left_out_but_not_what_is_wrong_with_them(tmp_path):
    equal = '{"draft": 5, "target": 5, "count": 9}'
    assert read(io.BytesIO(text(FIRST, equal)), MARK) == [(1, 2, 3.0)]
    assert ", line 3: this pair was there" in error_of(tmp_path, text(equal, equal))
    assert ", line 3: count must be" in error_of(tmp_path, text(FIRST, equal.replace("9", "-9")))


def test_an_empty_table_is_a_table(tmp_path):
    write(tmp_path / "empty", MARK, [])
    assert read(tmp_path / "empty", MARK) == []


def test_a_foreign_fingerprint_is_refused_unless_asked_for():
    data = text(FIRST, SECOND, fingerprint="f" * 32)
    with pytest.raises(ExchangeError, match=r"^table, line 1: .*fingerprints differ"):
        read(io.BytesIO(data), MARK)
    assert len(read(io.BytesIO(data), MARK, any_fingerprint=True)) == 2


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"format": "other"}, "not the header"),
        ({"schema": 2}, "schema must be 1"),
        ({"schema": True}, "schema must be 1"),
        ({"schema": 1.0}, "schema must be 1"),
        ({"fingerprint": 5}, "fingerprint must be a string"),
        ({"entries": -1}, "entries must be"),
        ({"entries": 2.0}, "entries must be"),
        ({"entries": True}, "entries must be"),
        ({"extra": 1}, "not the header"),
    ],
)
def test_bad_headers(tmp_path, changed, reason):
    message = error_of(tmp_path, text(FIRST, SECOND, **changed))
    assert message.startswith(", line 1: ")
    assert reason in message


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"draft": 1, "target": 3, "count": 0}', "count must be a positive number"),
        ('{"draft": 1, "target": 3, "count": -2}', "count must be a positive number"),
        ('{"draft": 1, "target": 3, "count": true}', "count must be a positive number"),
        ('{"draft": 1, "target": 3, "count": "7"}', "count must be a positive number"),
        ('{"draft": 1, "target": 3, "count": null}', "count must be a positive number"),
        ('{"draft": 1, "target": 3, "count": 1e999}', "count must be a positive number"),
        ('{"draft": 1, "target": 3, "count": 1' + "0" * 400 + "}", "count must be a positive number"),
        ('{"draft": 1, "target": 3, "count": NaN}', "not a JSON object"),
        ('{"draft": 1, "target": 3, "count": Infinity}', "not a JSON object"),
        ('{"draft": -1, "target": 3, "count": 1}', "draft must be a whole number"),
        ('{"draft": 2147483648, "target": 3, "count": 1}', "draft must be a whole number"),
        ('{"draft": true, "target": 3, "count": 1}', "draft must be a whole number"),
        ('{"draft": 1, "target": 3.0, "count": 1}', "target must be a whole number"),
        ('{"draft": 1, "target": "3", "count": 1}', "target must be a whole number"),
        ('{"draft": 1, "count": 1}', "exactly draft, target and count"),
        ('{"draft": 1, "target": 3, "count": 1, "secret": 1}', "exactly draft, target and count"),
        ('{"draft": 1, "target": 3, "target": 4, "count": 1}', "not a JSON object"),
        (FIRST, "this pair was there before"),
        ("", "not a JSON object"),
        ("secret", "not a JSON object"),
        ("[1, 3, 1]", "not a JSON object"),
        ("[" * 4000, "not a JSON object"),
        ('{"draft": 1, "target": 3, "cou', "not a JSON object"),
        (" " * MAX_LINE + FIRST, "longer than"),
    ],
)
def test_bad_entries_name_the_line_and_not_the_content(tmp_path, line, reason):
    message = error_of(tmp_path, text(FIRST, line))
    assert message.startswith(", line 3: ")
    assert reason in message
    assert "secret" not in message


def test_not_utf8(tmp_path):
    assert ", line 2: the line is not UTF-8" in error_of(tmp_path, text() + b'{"draft": 1, "t\xff": 2}\n')


def test_empty_truncated_and_overlong_files(tmp_path):
    assert error_of(tmp_path, b"") == ", line 1: the file is empty"
    assert error_of(tmp_path, text(FIRST)) == ", line 2: the file ends here, 1 entries short of what the header says"
    assert ", line 3: there are more" in error_of(tmp_path, text(FIRST, SECOND, entries=1))


@given(st.integers(1, 200))
def test_no_cut_file_is_read(cut):
    data = text(FIRST, SECOND)
    if cut >= len(data) or cut == 1:  # without the last newline nothing is missing
        return
    with pytest.raises(ExchangeError):
        read(io.BytesIO(data[:-cut]), MARK)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_clear_error(data):
    with pytest.raises(ExchangeError, match=r"^upload, line \d+: "):
        read(io.BytesIO(data), MARK, name="upload")


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(ExchangeError, match="missing: cannot be read: No such file"):
        read(tmp_path / "missing", MARK)
    with pytest.raises(ExchangeError, match="cannot be read"):
        read(tmp_path, MARK)
    with pytest.raises(ExchangeError, match="cannot be written: No such file"):
        write(tmp_path / "missing" / "table", MARK, [])


@pytest.mark.parametrize("entry", [(1, 3, math.nan), (1, 3, 0.0), (-1, 3, 1.0), (1, 2**31, 1.0), (3, 3, 1.0)])
def test_a_failed_write_leaves_the_old_file(tmp_path, entry):
    path = tmp_path / "table"
    write(path, MARK, [(1, 2, 3.0)])
    with pytest.raises(ExchangeError, match="entry 2: "):
        write(path, MARK, [(5, 6, 1.0), entry])
    assert read(path, MARK) == [(1, 2, 3.0)]
    assert [entry.name for entry in tmp_path.iterdir()] == ["table"]
