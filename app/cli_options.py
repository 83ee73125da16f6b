"""Options that several commands share."""

from __future__ import annotations

from typing import Any

import typer

from app.engine.dtypes import DTYPE_HELP, full_name
from app.settings import SettingsError


def _dtype(value: str) -> str:
    try:
        return full_name(value)
    except ValueError as error:
        raise SettingsError(f"--dtype {error}") from None


def dtype_option(envvar: str | None = None) -> Any:
    """`--dtype` under any of its spellings; the command gets the full name."""
    return typer.Option("auto", "--dtype", envvar=envvar, callback=_dtype, help=DTYPE_HELP)
