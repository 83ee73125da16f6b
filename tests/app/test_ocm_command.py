"""`racer-csd ocm`: a table goes out and comes back, and nothing changes when a file or a store is wrong."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.commands import main as cli
from csd.exchange import read, write
from csd.stores.base import Batch, add_once
from tests.csd.stores.support import Driven
from tests.tiny import loaded, tokenizer

Call = Callable[..., tuple[int, str]]
TABLE = "ab" * 16
ENTRIES = [(5, 6, 9.0), (7, 8, 2.0), (5, 9, 1.0)]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*words: str, store: str | None = None, table: str = TABLE) -> tuple[int, str]:
        url = store or f"sqlite:{tmp_path / 'ocm.sqlite3'}"
        monkeypatch.setattr(sys, "argv", ["racer-csd", "ocm", *words, "--store", url, "--fingerprint", table])
        code: object = 0
        try:
            cli.main()
        except SystemExit as left:
            code = left.code
        printed = capsys.readouterr()
        return (code if isinstance(code, int) else 0), printed.out + printed.err

    return call


def test_a_table_goes_in_out_and_away(run: Call, tmp_path: Path) -> None:
    first, back = tmp_path / "first.jsonl", tmp_path / "back.jsonl"
    write(first, TABLE, ENTRIES)
    assert run("import", str(first))[0] == 0
    code, text = run("show")
    assert code == 0 and "3 pairs, 12 divergences" in text and "9  5 for 6" in text
    assert "3 entries added" in run("merge", str(first))[1]
    for times, words, said in ((2, ("merge",), "was added before"), (3, ("merge", "--again"), "3 entries added")):
        assert said in run(*words, str(first))[1]
        assert run("export", str(back))[0] == 0
        assert read(back, TABLE) == [(draft, target, times * count) for draft, target, count in ENTRIES]
    assert "is replaced: 3 entries" in run("import", str(first))[1]
    assert run("export", str(back))[0] == 0
    assert read(back, TABLE) == ENTRIES
    assert run("clear", "--yes")[0] == 0
    assert "0 pairs" in run("show")[1]


def test_a_table_goes_through_pipes(run: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = tmp_path / "first.jsonl"
    write(first, TABLE, ENTRIES)
    for command, said in (("import", "is replaced: 3 entries"), ("merge", "standard input: 3 entries added")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(first.read_bytes())))
        assert said in run(command, "-")[1]
    out = io.TextIOWrapper(io.BytesIO())
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        assert run("export", "-")[0] == 0
    out.buffer.seek(0)
    assert read(out.buffer, TABLE) == [(draft, target, 2 * count) for draft, target, count in ENTRIES]


def test_a_merge_that_was_killed_goes_on_where_it_stood(tmp_path: Path) -> None:
    entries = [(token, token + 1, 1.0) for token in range(12_000)]  # three batches
    store = Driven(f"sqlite:{tmp_path / 'ocm.sqlite3'}", TABLE)
    apply, left = store.store.apply, [2]

    async def killed(batch: Batch) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise ConnectionError
        return await apply(batch)

    def add() -> bool:
        return store.loop.run_until_complete(add_once(store.store, entries, "name"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.store, "apply", killed)
        with pytest.raises(ConnectionError):
            add()
    assert len(store.counts()) == 10_000
    assert add() is True
    assert store.counts() == {(draft, target): count for draft, target, count in entries}
    assert add() is False
    store.close()


def test_looking_with_a_target_shows_texts(run: Call, tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path / "model")
    loaded().model.save_pretrained(tmp_path / "model")
    first = tmp_path / "first.jsonl"
    write(first, TABLE, [(13, 14, 9.0)])
    assert run("import", str(first))[0] == 0
    assert "13 for 14  'a' for 'b'" in run("show", "--target", str(tmp_path / "model"))[1]


def test_files_and_store_are_judged_before_a_model_is_looked_for(run: Call, tmp_path: Path) -> None:
    model = ("--target", str(tmp_path / "no-model"))
    assert "absent.jsonl" in run("merge", "absent.jsonl", *model, table="")[1]
    assert "store must be one of" in run("show", *model, store="mysql://host/db", table="")[1]
    assert "no-model" in run("show", *model, store=f"sqlite:{_file(tmp_path)}", table="")[1]


def _file(directory: Path) -> Path:
    path = directory / "there.sqlite3"
    path.touch()
    return path


def test_looking_makes_no_file(run: Call, tmp_path: Path) -> None:
    for words in (("show",), ("export", str(tmp_path / "out.jsonl")), ("clear", "--yes")):
        code, text = run(*words, store=f"sqlite:{tmp_path / 'typo' / 'ocm.sqlite3'}")
        assert code == 2 and "there is no file" in text
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_is_said_and_changes_nothing(run: Call, tmp_path: Path) -> None:
    good, bad, foreign = tmp_path / "good.jsonl", tmp_path / "bad.jsonl", tmp_path / "foreign.jsonl"
    write(good, TABLE, ENTRIES)
    write(foreign, "cd" * 16, ENTRIES)
    bad.write_bytes(good.read_bytes().replace(b'"count": 2', b'"count": -2'))
    assert run("import", str(good))[0] == 0
    for words, said in (
        (("import", str(bad)), "line 3"),
        (("merge", str(good), str(bad)), "line 3"),
        (("import", str(foreign)), "foreign.jsonl"),
        (("merge", str(tmp_path / "absent.jsonl")), "absent.jsonl"),
    ):
        code, text = run(*words)
        assert code == 2 and said in text
        assert "3 pairs, 12 divergences" in run("show")[1]
    assert run("import", str(foreign), "--force")[0] == 0


@pytest.mark.parametrize("store", ["mysql://host/db", "none", "sqlite:"])
def test_a_store_that_cannot_be_is_a_usage_error(run: Call, store: str) -> None:
    code, text = run("show", store=store)
    assert code == 2 and "store" in text


def test_a_file_that_is_no_database_is_named_and_left_alone(run: Call, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but somebody's notes " * 50)
    code, text = run("show", store=f"sqlite:{path}")
    assert code == 1 and "notes.txt" in text
    assert path.read_text().startswith("not a database")


def test_a_server_that_is_away_is_a_failure_without_the_password(run: Call) -> None:
    code, text = run("show", store="redis://:hunter2@127.0.0.1:1/0")
    assert code == 1 and "hunter2" not in text


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "--port", "0", "--store", "mysql://host/db"),
        ("calibrate", "--target", "t", "--draft", "d", "--data", "absent.jsonl", "--store", "mysql://host/db"),
    ],
)
def test_serve_and_calibrate_refuse_a_store_before_they_load_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "argv", ["racer-csd", *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert "store must be one of" in capsys.readouterr().err
