"""The command `racer-csd info`: versions, machine, settings, and what the loaded model is and costs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from app.assembly import load_engine
from app.engine.errors import EngineError
from app.engine.models.cache import cache_directory
from app.engine.models.dtypes import DTYPE_HELP
from app.process import stoppable
from app.settings import Settings, read_settings, unknown_variables

if TYPE_CHECKING:
    from app.engine.engine import Engine

PACKAGES = ("racer-csd", "torch", "transformers", "tokenizers", "numpy", "numba", "fastapi", "uvicorn")
STORE_SECONDS = 3.0  # to reach the store
FAILURE = 1


def info(
    target: str | None = typer.Option(None, help="Model to load"),
    draft: str | None = typer.Option(None, help="Draft model to load"),
    dtype: str | None = typer.Option(None, help=DTYPE_HELP),
    model: bool = typer.Option(True, "--model/--no-model", help="Load the model and tell what a step costs, or do not"),
    as_json: bool = typer.Option(False, "--json", help="One JSON object, for scripts"),
) -> None:
    """What a bug report needs: versions, machine, settings, model, step costs, store. Keys and passwords are not shown.

    The exit code is 1 when the model cannot be loaded; the rest is shown all the same.
    """
    settings = read_settings({"target": target, "draft": draft, "dtype": dtype})
    report: dict[str, Any] = {"versions": versions(), "machine": machine(), "settings": shown(settings)}
    report["cache"] = str(cache_directory(settings.cache_dir))
    report["warnings"] = unknown_variables(os.environ)
    if model:
        report |= loaded(settings)
    if as_json:
        typer.echo(json.dumps(report, indent=2, default=str))
    else:
        _print(report, Console(highlight=False, markup=False, soft_wrap=True))
    if "error" in report:
        raise typer.Exit(FAILURE)


def versions() -> dict[str, str | None]:
    """Of Python and of the packages that matter; None where one is not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"platform": platform.platform(), "cpus": usable, "cuda": cuda}


def shown(settings: Settings) -> dict[str, Any]:
    """Values fit to be shown: secrets are starred, and of keys there is only their number."""
    values = settings.model_dump() | {"api_keys": f"{len(settings.api_keys)} set"}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return value if isinstance(value, int | float | str | None) else str(value)


def loaded(settings: Settings) -> dict[str, Any]:
    """The model, what a step costs, and the store; or the error that kept it from loading."""
    try:
        with stoppable():
            engine = load_engine(settings)
    except EngineError as error:
        return {"error": str(error)}
    try:
        return {"model": asdict(engine.info), "step_seconds": engine.instruments.cost_curve, "store": _store(engine)}
    finally:
        engine.close()


def _store(engine: Engine) -> dict[str, Any] | None:
    """None where csd is not allowed: there is no memory then."""
    if engine.corrections is None:
        return None
    engine.corrections.flush(STORE_SECONDS)
    return asdict(engine.corrections.status) | {"fingerprint": engine.corrections.fingerprint}


def _print(report: dict[str, Any], console: Console) -> None:
    console.print(
        "versions: " + ", ".join(f"{name} {value or '(not installed)'}" for name, value in report["versions"].items())
    )
    facts = report["machine"]
    console.print(f"machine: {facts['platform']}, cpus {facts['cpus']}, cuda {facts['cuda'] or 'none'}")
    console.print(f"built-in and converted models, measurements: {report['cache']}")
    for line in report["warnings"]:
        console.print(f"warning: {line}")
    if "error" in report:
        console.print(f"model: cannot be loaded. {report['error']}")
    elif "model" in report:
        _print_model(report, console)
    console.print("settings:")
    defaults = {name: _plain(field.default) for name, field in Settings.model_fields.items()}
    for name, value in report["settings"].items():
        changed = name != "api_keys" and value != defaults[name]
        console.print(f"  {name} = {value}" + (f"  (default {defaults[name]})" if changed else ""))


def _print_model(report: dict[str, Any], console: Console) -> None:
    console.print("model:")
    for name, value in report["model"].items():
        console.print(f"  {name.replace('_', ' ')}: {'none' if value is None else value}")
    curve = report["step_seconds"]
    if curve is None:
        console.print("  a step costs: not measured, since this model decodes plainly")
    else:
        table = Table("rows", "ms per step", "times one row", title="T(n)", title_justify="left")
        for rows, seconds in curve:
            table.add_row(str(rows), f"{1e3 * seconds:.2f}", f"{seconds / curve[0][1]:.2f}")
        console.print(table)
    store = report["store"]
    if store is None:
        console.print("store: none, csd is not allowed")
        return
    error = f", last error: {store['last_error']}" if store["last_error"] else ""
    console.print(f"store: {store['name']}, {store['state']}, {store['entries']} pairs, table {store['fingerprint']}{error}")
