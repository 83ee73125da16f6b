"""The command `racer-csd calibrate`: fill a correction memory from unlabelled text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from app.commands.bench import DataGroup, fractions
from app.commands.options import dtype_option
from app.process import stoppable
from app.settings import SettingsError, read_settings

if TYPE_CHECKING:
    from app.calibration.journal import Journal
    from app.calibration.run import CalibrationProgress, Mode
    from app.calibration.texts import Item
    from app.engine.correction import CsdConfig
    from app.engine.engine import Engine
    from csd.memory import Entry

COMPARED = (20, 100, 500)  # most frequent pairs that --compare looks at
NO_ANSWERS = "none of the data has answers, so the questions themselves are compared; --generate has the target answer them"

calibrate = typer.Typer(
    name="calibrate",
    cls=DataGroup,
    help="Count where draft model and target choose differently, for the csd verifier.",
    invoke_without_command=True,
    add_completion=False,
)


@calibrate.callback()
def run(
    target: str = typer.Option(help="Target model"),
    draft: str = typer.Option(help="Draft model of the same vocabulary"),
    data: list[Path] = typer.Option([], help="JSON lines with `turns`, `prompt` or `text` (and `answer`), or plain text files"),
    mode: str = typer.Option("forced", help="forced: both models read the same text; rollout: decode speculatively"),
    limit: int | None = typer.Option(
        None, min=1, help="Pieces of data, taken from the files in turn; all where not given; a later run may raise it"
    ),
    part: str = typer.Option("0:1", help="Part of each file by fractions, such as 0:0.667 for its first two thirds"),
    max_tokens: int = typer.Option(256, min=1, help="Tokens of an answer at most (rollout, or with --generate)"),
    gamma: int = typer.Option(6, min=1, max=64, help="Draft length (rollout)"),
    generate: bool = typer.Option(False, "--generate", help="Forced: have the target answer questions without an answer first"),
    store: str = typer.Option("none", help="Store to add the table to: sqlite:PATH, redis://..., none"),
    dtype: str = dtype_option(),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps"),
    threads: int | None = typer.Option(None, min=1, help="Threads; all usable CPUs where not given"),
    out: Path = typer.Option(Path("out/calibrate"), help="Directory of the results; a run that was cut off goes on there"),
    fresh: bool = typer.Option(False, "--fresh", help="Drop the results that are there"),
    compare: Path | None = typer.Option(None, help="Another table.jsonl of this pair of models: how far the top pairs agree"),
) -> None:
    """Writes table.jsonl, report.json and divergences.png, and adds the table to the store."""
    if mode not in ("forced", "rollout"):
        raise SettingsError("--mode must be forced or rollout")
    if not data:
        raise SettingsError("calibrate needs text: give --data FILE")
    from app.engine.correction import CsdConfig, add_to_store
    from app.engine.engine import Engine, EngineConfig

    kept_in = _store_config(store)
    given = {"mode": mode, "target": target, "draft": draft, "max_tokens": max_tokens, "gamma": gamma, "generate": generate}
    items, journal = _open(data, limit, part, given | {"dtype": dtype}, out, fresh=fresh)
    # The engine has no store: what it counts while it decodes would reach the store beside the table, and count twice.
    config = EngineConfig(max_running=1, prior_rows=0, csd=CsdConfig(allowed=True))
    with (
        stoppable(),
        Engine.from_pretrained(target, config, draft=draft, dtype=dtype, device=device, threads=threads) as engine,
    ):
        corrections = engine.corrections
        assert corrections is not None
        other = None if compare is None else _other_table(compare, corrections.fingerprint)  # before minutes are spent
        _fill(engine, items, journal, cast("Mode", mode), max_tokens, gamma, out, generate=generate)
        report = _write(engine, journal, mode, corrections.fingerprint, other, out)
    kept = "" if store == "none" else _stored(add_to_store(kept_in, corrections.fingerprint, journal.batches), journal)
    _print(report)
    typer.echo(f"\n{report['entries']} pairs in {out / 'table.jsonl'}{kept}")


def _store_config(store: str) -> CsdConfig:
    """Where the table goes. Raises SettingsError for a store that cannot be, before anything is read."""
    from app.engine.correction import CsdConfig
    from csd.stores.url import open_store

    settings = read_settings()
    try:
        open_store(store, "any")
    except ValueError as error:
        raise SettingsError(f"--store: {error}") from error
    return CsdConfig(allowed=True, store=store, ttl=settings.store_ttl, max_entries=settings.ocm_entries)


def _open(
    data: list[Path], limit: int | None, part: str, given: dict[str, Any], out: Path, *, fresh: bool
) -> tuple[list[Item], Journal]:
    """The texts, and the journal of what was read of them. given: the options that a journal belongs to."""
    from app.calibration.digest import named_digest
    from app.calibration.journal import Journal
    from app.calibration.linelog import LineLogError
    from app.calibration.texts import CalibrationDataError, read_items

    try:
        items = read_items(data, limit, fractions(part))
        journal = Journal(out, given | {"data": [named_digest(path) for path in data], "part": part}, fresh=fresh)
    except (CalibrationDataError, LineLogError) as error:
        raise SettingsError(str(error)) from error
    without_answers = all(item.prompt is not None and item.text is None for item in items)
    if given["mode"] == "forced" and not given["generate"] and without_answers:
        typer.echo(f"note: {NO_ANSWERS}", err=True)
    if more := len(journal.readings.keys() - {item.key for item in items}):
        typer.echo(f"note: {more} texts that an earlier run read beyond --limit are in the table too", err=True)
    return items, journal


def _fill(
    engine: Engine, items: list[Item], journal: Journal, mode: Mode, max_tokens: int, gamma: int, out: Path, *, generate: bool
) -> None:
    """Read the texts that the journal lacks; what is read is kept also where the user stops it."""
    from app.calibration.run import calibrate as read_texts

    try:
        read_texts(engine, items, mode, journal, max_tokens=max_tokens, gamma=gamma, generate=generate, report=_show)
    except KeyboardInterrupt:
        done = sum(item.key in journal.readings for item in items)
        typer.echo(f"\nstopped; {done} of {len(items)} texts are kept in {out}", err=True)
        raise
    finally:
        journal.close()


def _stored(new: int, journal: Journal) -> str:
    """What became of the journal's batches, new: how many the store had not got before."""
    if not new:
        return "; the store got them before (`racer-csd ocm merge` adds them once more)"
    return ", added to the store" if new == len(journal.batches) else "; the store got those of the new texts"


def _other_table(path: Path, fingerprint: str) -> list[Entry]:
    """The pairs of a table of the same models, most frequent first."""
    from csd.exchange import read

    try:
        pairs = [entry for entry in read(path, fingerprint) if entry[0] != entry[1]]
    except ValueError as error:
        raise SettingsError(f"--compare: {error}") from error
    return sorted(pairs, key=lambda entry: (-entry[2], entry[:2]))


def _write(
    engine: Engine, journal: Journal, mode: str, fingerprint: str, other: list[Entry] | None, out: Path
) -> dict[str, Any]:
    """The table, the plot and the report, which is returned. other: a table to compare the most frequent pairs with."""
    from app.calibration.plot import draw
    from app.calibration.run import summary, write_report
    from app.engine.correction import CsdConfig
    from csd.divergence import agreement
    from csd.exchange import write

    found = journal.divergences()
    entries = found.entries()
    report = summary(found, journal, lambda ids: engine.codec.decode(ids, skip_special_tokens=False))
    report |= {"mode": mode, "fingerprint": fingerprint, "entries": write(out / "table.jsonl", fingerprint, entries)}
    if other is not None:
        report["agreement"] = {str(top): round(agreement(entries, other, top), 4) for top in COMPARED}
    write_report(out, report)
    draw(found, CsdConfig().tau, out / "divergences.png")
    return report


def _show(progress: CalibrationProgress) -> None:
    from bench.progress import minutes

    typer.echo(
        f"[{progress.done}/{progress.total}] {progress.events} divergences, {progress.tokens_per_s:.0f} tokens/s, "
        f"about {minutes(progress.seconds_left)} left",
        err=True,
    )


def _print(report: dict[str, Any]) -> None:
    typer.echo(
        f"{report['events']} divergences at {report['positions']} positions of {report['texts']} texts; "
        f"{report['pairs']} pairs, the most frequent fifth holds {100 * report['share_of_top_20_percent']:.0f} %"
    )
    for top, share in report.get("agreement", {}).items():
        typer.echo(f"of the {top} most frequent pairs, {100 * share:.0f} % are among those of the other table")
    above = ", ".join(f"{count} above {value}" for value, count in report["pairs_above_lambda"].items())
    typer.echo(f"pairs by count: {above}")
    for pair in report["most_frequent"]:
        typer.echo(f"{pair['count']:6d}  {pair['draft_text']!r} for {pair['target_text']!r}, mean gap {pair['mean_gap']}")
