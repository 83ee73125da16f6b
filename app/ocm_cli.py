"""The commands `racer-csd ocm ...`: look at, move and clear the table of a store."""

# ruff: noqa: B008, PLC0415 - typer reads defaults; the model libraries take seconds to import

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from app.settings import SettingsError

if TYPE_CHECKING:
    from csd.stores.base import Store

T = TypeVar("T")
SHOWN = 20

ocm = typer.Typer(name="ocm", help="Show, export, import, merge and clear a correction memory.", no_args_is_help=True)

StoreOption = typer.Option(envvar="RACER_STORE", help="sqlite:PATH, redis://..., rediss://..., unix://...")
TargetOption = typer.Option("", envvar="RACER_TARGET", help="Target whose table is meant")
DraftOption = typer.Option("", envvar="RACER_DRAFT", help="Draft model of the table; none: RACER's own drafts")
TableOption = typer.Option("", "--fingerprint", help="The table itself, in place of its models")


@ocm.command("show")
def show(
    store: str = StoreOption, target: str = TargetOption, draft: str = DraftOption, fingerprint: str = TableOption
) -> None:
    """Number of pairs and divergences, and the most frequent pairs by their ids."""
    table = _table(target, draft, fingerprint)
    entries = _use(store, table, lambda open_one: open_one.load()).entries
    pairs = [entry for entry in entries if entry[0] != entry[1]]
    typer.echo(f"table {table}: {len(pairs)} pairs, {sum(count for _, _, count in pairs):g} divergences")
    for first, second, count in pairs[:SHOWN]:
        typer.echo(f"{count:8g}  {first} for {second}")


@ocm.command("export")
def export(
    out: Path = typer.Argument(help="File to write"),
    store: str = StoreOption,
    target: str = TargetOption,
    draft: str = DraftOption,
    fingerprint: str = TableOption,
) -> None:
    """Write the table as JSON lines."""
    from csd.exchange import ExchangeError, write

    table = _table(target, draft, fingerprint)
    entries = _use(store, table, lambda open_one: open_one.load()).entries
    try:
        typer.echo(f"{write(out, table, entries)} entries written to {out}")
    except ExchangeError as error:
        raise SettingsError(str(error)) from error


@ocm.command("import")
def import_(
    file: Path = typer.Argument(help="File made by export or calibrate"),
    store: str = StoreOption,
    target: str = TargetOption,
    draft: str = DraftOption,
    fingerprint: str = TableOption,
    force: bool = typer.Option(False, "--force", help="Take a table made for other models too"),
) -> None:
    """Replace the store's table by a file's. Nothing changes if any line of the file is wrong."""
    _bring([file], store, _table(target, draft, fingerprint), force=force, replace=True)


@ocm.command("merge")
def merge(
    files: list[Path] = typer.Argument(help="Files made by export or calibrate"),
    store: str = StoreOption,
    target: str = TargetOption,
    draft: str = DraftOption,
    fingerprint: str = TableOption,
    force: bool = typer.Option(False, "--force", help="Take tables made for other models too"),
) -> None:
    """Add the counts of files to the store's table. Nothing changes if any line of any file is wrong."""
    _bring(files, store, _table(target, draft, fingerprint), force=force, replace=False)


@ocm.command("clear")
def clear(
    store: str = StoreOption,
    target: str = TargetOption,
    draft: str = DraftOption,
    fingerprint: str = TableOption,
    yes: bool = typer.Option(False, "--yes", help="Do not ask"),
) -> None:
    """Empty the table."""
    table = _table(target, draft, fingerprint)
    if not yes:
        typer.confirm(f"Empty table {table}?", abort=True)
    _use(store, table, lambda open_one: open_one.clear())
    typer.echo(f"table {table} is empty")


def _bring(files: list[Path], url: str, table: str, *, force: bool, replace: bool) -> None:
    from csd.exchange import ExchangeError, read
    from csd.stores.base import batches_of

    try:
        parts = [read(file, table, any_fingerprint=force) for file in files]
    except ExchangeError as error:
        raise SettingsError(str(error)) from error

    entries = [entry for part in parts for entry in part]

    async def send(store: Store) -> None:
        if replace:
            await store.replace(entries)
            return
        for batch in batches_of(entries):
            await store.apply(batch)

    _use(url, table, send, create=True)
    typer.echo(f"{sum(map(len, parts))} entries added to table {table}")


def _table(target: str, draft: str, given: str) -> str:
    """The fingerprint that is meant: given, or worked out from the models, which are loaded for it."""
    if given:
        return given
    if not target:
        raise SettingsError("say which table: --target (and --draft), or --fingerprint")
    from app.engine.correction import table_fingerprint
    from app.engine.loading import load_model

    return table_fingerprint(load_model(target), load_model(draft) if draft else None)


def _use(url: str, table: str, work: Callable[[Store], Coroutine[Any, Any, T]], *, create: bool = False) -> T:
    """create: whether a SQLite file that does not exist is made; who only looks most likely mistyped its name."""
    from csd.stores.sqlite import SqliteStore
    from csd.stores.url import open_store

    try:
        store = open_store(url, table)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    if store is None:
        raise SettingsError("store: name a SQLite file or a Redis server")
    if isinstance(store, SqliteStore) and not create and not store.path.exists():
        raise SettingsError(f"store: there is no file {store.path}")

    async def whole() -> T:
        try:
            await store.open()
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(whole())
