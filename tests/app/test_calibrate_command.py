"""`racer-csd calibrate` from end to end: what is in the table is in the store, once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.commands import main as cli
from csd.exchange import read
from tests.csd.stores.support import Driven
from tests.engine.drafting import similar
from tests.tiny import loaded, tokenizer

Call = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    for name, model in (("target", loaded().model), ("draft", similar(0.1).model)):
        model.save_pretrained(tmp_path / name)
        tokenizer().save_pretrained(tmp_path / name)
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("abc abc", "hello", "x" * 400)))
    monkeypatch.setenv("RACER_CACHE_DIR", str(tmp_path / "cache"))

    def call(*words: str, data: Path = data, code: int = 0) -> str:
        models = ("--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft"), "--dtype", "fp32", "--threads", "1")
        kept = ("--data", str(data), "--out", str(tmp_path / "out"), "--store", f"sqlite:{tmp_path / 'ocm.sqlite3'}")
        monkeypatch.setattr(sys, "argv", ["racer-csd", "calibrate", *models, *kept, "--max-tokens", "30", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        shown = capsys.readouterr()
        assert left.value.code == code, shown.err
        return shown.out if code == 0 else shown.err

    return call


@pytest.mark.parametrize("words", [("--mode", "rollout"), ("--mode", "forced", "--generate")])
def test_the_store_holds_the_table_once(run: Call, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert run(*words).endswith("added to the store\n")
    first = (tmp_path / "out" / "table.jsonl").read_text().splitlines()[0]
    fingerprint = json.loads(first)["fingerprint"]
    table = {(draft, target): count for draft, target, count in read(tmp_path / "out" / "table.jsonl", fingerprint)}
    store = Driven(f"sqlite:{tmp_path / 'ocm.sqlite3'}", fingerprint)
    assert store.counts() == table and len(table) > 1
    assert "got them before" in run(*words)
    assert store.counts() == table
    store.close()


def test_a_larger_limit_reads_and_adds_the_new_texts_alone(run: Call, tmp_path: Path) -> None:
    whole = run("--out", str(tmp_path / "whole"), "--store", "none")
    assert run("--limit", "1").endswith("added to the store\n")
    first = (tmp_path / "out" / "journal.jsonl").read_text()
    assert "the store got those of the new texts" in run("--limit", "2")
    journal = (tmp_path / "out" / "journal.jsonl").read_text()
    assert journal.startswith(first) and journal.count('"key"') == 2
    assert "the store got those of the new texts" in run()
    assert "got them before" in run("--limit", "2")
    table = tmp_path / "out" / "table.jsonl"
    assert table.read_text() == (tmp_path / "whole" / "table.jsonl").read_text()
    fingerprint = json.loads(table.read_text().splitlines()[0])["fingerprint"]
    store = Driven(f"sqlite:{tmp_path / 'ocm.sqlite3'}", fingerprint)
    assert store.counts() == {(draft, target): count for draft, target, count in read(table, fingerprint)}
    store.close()
    assert "3 texts" in whole


def test_data_that_was_moved_is_still_the_same(run: Call, tmp_path: Path) -> None:
    run()
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "data.jsonl").rename(tmp_path / "elsewhere" / "data.jsonl")
    journal = (tmp_path / "out" / "journal.jsonl").read_text()
    assert "got them before" in run(data=moved)
    assert (tmp_path / "out" / "journal.jsonl").read_text() == journal


def test_a_table_is_compared_with_another_of_the_same_models_and_no_other(run: Call, tmp_path: Path) -> None:
    run("--generate")
    own = tmp_path / "own.jsonl"
    (tmp_path / "out" / "table.jsonl").rename(own)
    shown = run("--generate", "--compare", str(own))
    assert "100 % are among those of the other table" in shown
    assert json.loads((tmp_path / "out" / "report.json").read_text())["agreement"]["20"] == 1.0
    header, *rest = own.read_text().splitlines()
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text("\n".join([header.replace(json.loads(header)["fingerprint"], "0" * 64), *rest]) + "\n")
    for bad in (foreign, tmp_path / "absent.jsonl"):
        said = run("--generate", "--fresh", "--compare", str(bad), code=2)
        assert "--compare" in said and bad.name in said
        assert not (tmp_path / "out" / "journal.jsonl").read_text().count('"key"')  # nothing was read for it
