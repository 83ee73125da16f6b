"""The commands `racer-csd ocm ...`: look at, move and clear the table of a store."""

from __future__ import annotations

import asyncio
import hashlib
import io
import sys
import uuid
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from app.commands.options import dtype_option
from app.settings import SettingsError, read_settings
from csd.exchange import ExchangeError, read_any, write
from csd.stores.base import Store, add_once
from csd.stores.sqlite import SqliteStore
from csd.stores.url import open_store

if TYPE_CHECKING:
    from csd.memory import Entry

T = TypeVar("T")
SHOWN = 20
STREAM = Path("-")  # standard input or output
PROBE = "any"  # a fingerprint to check a store's URL with, before the table is known

ocm = typer.Typer(name="ocm", help="Show, export, import, merge and clear a correction memory.", no_args_is_help=True)

StoreOption = typer.Option(envvar="RACER_STORE", help="sqlite:PATH, redis://..., rediss://..., unix://...")
TargetOption = typer.Option("", envvar="RACER_TARGET", help="Target whose table is meant")
DraftOption = typer.Option("", envvar="RACER_DRAFT", help="Draft model of the table; none: RACER's own drafts")
TableOption = typer.Option("", "--fingerprint", help="The table itself, in place of its models")
DtypeOption = dtype_option("RACER_DTYPE")
ForceOption = typer.Option(False, "--force", help="Take a table made for other models too")


@ocm.command("show")
def show(
    store: str = StoreOption,
    target: str = TargetOption,
    draft: str = DraftOption,
    fingerprint: str = TableOption,
    dtype: str = DtypeOption,
) -> None:
    """Number of pairs and divergences, and the most frequent pairs: their ids, and their texts where --target is given."""
    _check(store)
    table = _table(target, draft, fingerprint, dtype)
    entries = _use(store, table, lambda open_one: open_one.load()).entries
    pairs = [entry for entry in entries if entry[0] != entry[1]]
    typer.echo(f"table {table}: {len(pairs)} pairs, {sum(count for _, _, count in pairs):g} divergences")
    texts = _texts(target, {token for pair in pairs[:SHOWN] for token in pair[:2]}) if target and pairs else {}
    for first, second, count in pairs[:SHOWN]:
        words = f"  {texts[first]!r} for {texts[second]!r}" if texts else ""
        typer.echo(f"{count:8g}  {first} for {second}{words}")


@ocm.command("export")
def export(
    out: Path = typer.Argument(metavar="FILE", help="File to write; - is standard output"),
    store: str = StoreOption,
    target: str = TargetOption,
    draft: str = DraftOption,
    fingerprint: str = TableOption,
    dtype: str = DtypeOption,
) -> None:
    """Write the table as JSON lines."""
    _check(store)
    if out != STREAM and not out.parent.is_dir():
        raise SettingsError(f"{out}: there is no directory {out.parent}")
    table = _table(target, draft, fingerprint, dtype)
    entries = _use(store, table, lambda open_one: open_one.load()).entries
    try:
        written = write(sys.stdout.buffer if out == STREAM else out, table, entries)
    except ExchangeError as error:
        raise SettingsError(str(error)) from error
    typer.echo(f"{written} entries written to {'standard output' if out == STREAM else out}", err=out == STREAM)


@ocm.command("import")
def import_(
    file: Path = typer.Argument(metavar="FILE", help="File made by export or calibrate; - is standard input"),
    store: str = StoreOption,
    target: str = TargetOption,
    draft: str = DraftOption,
    fingerprint: str = TableOption,
    dtype: str = DtypeOption,
    force: bool = ForceOption,
) -> None:
    """Replace the store's table by a file's. Nothing changes if any line of the file is wrong."""
    _check(store, create=True)
    read = _read(file)
    table = _table(target, draft, fingerprint, dtype)
    _fit([read], table, force=force)
    _use(store, table, lambda open_one: open_one.replace(read.entries), create=True)
    typer.echo(f"table {table} is replaced: {len(read.entries)} entries")


@ocm.command("merge")
def merge(
    files: list[Path] = typer.Argument(metavar="FILE...", help="Files made by export or calibrate; - is standard input"),
    store: str = StoreOption,
    target: str = TargetOption,
    draft: str = DraftOption,
    fingerprint: str = TableOption,
    dtype: str = DtypeOption,
    force: bool = ForceOption,
    again: bool = typer.Option(False, "--again", help="Add files too that were added to this table before"),
) -> None:
    """Add the counts of files to the store's table, each file once. Nothing changes if any line of any file is wrong."""
    _check(store, create=True)
    read = [_read(file) for file in files]
    table = _table(target, draft, fingerprint, dtype)
    _fit(read, table, force=force)

    async def add(open_one: Store) -> list[bool]:
        return [await add_once(open_one, file.entries, uuid.uuid4().hex if again else file.digest) for file in read]

    for file, new in zip(read, _use(store, table, add, create=True), strict=True):
        said = f"{len(file.entries)} entries added to table {table}" if new else "was added before; --again adds it once more"
        typer.echo(f"{file.name}: {said}")


@ocm.command("clear")
def clear(
    store: str = StoreOption,
    target: str = TargetOption,
    draft: str = DraftOption,
    fingerprint: str = TableOption,
    dtype: str = DtypeOption,
    yes: bool = typer.Option(False, "--yes", help="Do not ask"),
) -> None:
    """Empty the table."""
    _check(store)
    table = _table(target, draft, fingerprint, dtype)
    if not yes:
        typer.confirm(f"Empty table {table}?", abort=True)
    _use(store, table, lambda open_one: open_one.clear())
    typer.echo(f"table {table} is empty")


@dataclass(frozen=True, slots=True)
class _File:
    """A table that was read whole. digest: of its bytes."""

    name: str
    fingerprint: str
    entries: list[Entry]
    digest: str


def _read(file: Path) -> _File:
    name = "standard input" if file == STREAM else str(file)
    try:
        content = sys.stdin.buffer.read() if file == STREAM else file.read_bytes()
        fingerprint, entries = read_any(io.BytesIO(content), name)
    except OSError as error:
        raise SettingsError(f"{name}: cannot be read: {error.strerror}") from error
    except ExchangeError as error:
        raise SettingsError(str(error)) from error
    return _File(name, fingerprint, entries, hashlib.sha256(content).hexdigest())


def _fit(files: list[_File], table: str, *, force: bool) -> None:
    foreign = next((file.name for file in files if file.fingerprint != table), None)
    if foreign is not None and not force:
        raise SettingsError(f"{foreign}: made for another target, draft source or vocabulary; --force takes it all the same")


def _table(target: str, draft: str, given: str, dtype: str) -> str:
    """The fingerprint that is meant: given, or worked out from the models' files."""
    if given:
        return given
    if not target:
        raise SettingsError("say which table: --target (and --draft), or --fingerprint")
    from app.engine.models.identity import table_of

    return table_of(target, draft or None, dtype)


def _texts(target: str, tokens: Iterable[int]) -> dict[int, str]:
    """What each token says."""
    from app.engine.models.loading import load_tokenizer

    tokenizer = load_tokenizer(target)
    return {token: str(tokenizer.decode([token], skip_special_tokens=False)) for token in tokens}


def _check(url: str, *, create: bool = False) -> None:
    """Whether the store can be, before anything is loaded."""
    _store(url, PROBE, create=create)


def _store(url: str, table: str, *, create: bool) -> Store:
    """create: whether a SQLite file that does not exist is made; who only looks most likely mistyped its name."""
    settings = read_settings()
    try:
        store = open_store(url, table, ttl=settings.store_ttl, max_entries=settings.ocm_entries)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    if store is None:
        raise SettingsError("store: name a SQLite file or a Redis server")
    if isinstance(store, SqliteStore) and not create and not store.path.exists():
        raise SettingsError(f"store: there is no file {store.path}")
    return store


def _use(url: str, table: str, work: Callable[[Store], Coroutine[Any, Any, T]], *, create: bool = False) -> T:
    async def whole() -> T:
        store = _store(url, table, create=create)
        try:
            await store.open()
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(whole())
