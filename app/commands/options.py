"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from app.engine.models.dtypes import DTYPE_HELP, full_name
from app.settings import Settings, SettingsError, flag


def _dtype(value: str) -> str:
    try:
        return full_name(value)
    except ValueError as error:
        raise SettingsError(f"--dtype {error}") from None


def dtype_option(envvar: str | None = None) -> Any:
    """`--dtype` under any of its spellings; the command gets the full name."""
    return typer.Option("auto", "--dtype", envvar=envvar, callback=_dtype, help=DTYPE_HELP)


def with_setting_flags(command: Callable[..., None]) -> Callable[..., None]:
    """One flag per setting, all optional: what is not given comes from the environment, and one place judges values.

    pydantic-settings' own command line is no help here: it brings an argparse parser, whose --help and errors would look unlike
    those of all other commands.
    """
    parameters = []
    for name, field in Settings.model_fields.items():
        switch = field.annotation is bool
        declared = f"{flag(name)}/--no-{name.replace('_', '-')}" if switch else flag(name)
        said = f"{field.description}{_values(field)}"
        option = typer.Option(None, declared, help=said, metavar=_kind(field), show_default=False)
        annotation = bool | None if switch else str | None
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _values(field: FieldInfo) -> str:
    """What can be chosen, and the default where the description does not tell it in words."""
    said = []
    if get_origin(field.annotation) is Literal:
        said.append(f"one of {', '.join(map(str, get_args(field.annotation)))}")
    default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
    if default is not None and default != "":
        said.append(f"default: {str(default).lower() if isinstance(default, bool) else default}")
    return f" ({'; '.join(said)})" if said else ""


def _kind(field: FieldInfo) -> str | None:
    """What a value looks like; None for a switch."""
    if get_origin(field.annotation) is Literal:
        return "CHOICE"
    kind = next((kind for kind in get_args(field.annotation) if kind is not type(None)), field.annotation)
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    names: dict[Any, str | None] = {bool: None, int: "INTEGER", float: "NUMBER", Path: "FILE"}
    return names.get(kind, "TEXT")
