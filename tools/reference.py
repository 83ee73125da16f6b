"""Writes the parts of other files that repeat the code: docs/openapi.json, the tables of settings.md and api.md, the pictures,
the drawing of the packages, the settings in docker-compose.yml, and the alerts for the Prometheus operator.

python -m tools.reference (or make reference); a test compares the files with what this makes.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic.fields import FieldInfo

from app.main import create_app
from app.settings import ENV_PREFIX, Settings, flag
from tools.package_drawing import drawing
from tools.pictures import pictures

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BEGIN, END = "<!-- begin: made by tools/reference.py -->", "<!-- end -->"
COMPOSE_BEGIN, COMPOSE_END = "      # begin: made by tools/reference.py\n", "      # end\n"
OF_THE_IMAGE = frozenset({"host", "port", "cache_dir", "workers"})  # what compose has no say in
SET_BY_COMPOSE = frozenset({"store", "shutdown_grace", "allowed_hosts"})


def generated() -> dict[Path, str]:
    """Every file and what it should hold."""
    description = openapi()
    files = {
        DOCS / "openapi.json": json.dumps(description, indent=2, ensure_ascii=False) + "\n",
        DOCS / "settings.md": _filled("settings.md", settings_table()),
        DOCS / "api.md": _filled("api.md", api_tables(description)),
        ROOT / "docker-compose.yml": compose(),
        ROOT / "deploy/kubernetes/prometheusrule.yaml": prometheus_rule(),
    }
    images = pictures() | {"packages.svg": drawing()}
    return files | {DOCS / "images" / name: text for name, text in images.items()}


def openapi() -> dict[str, Any]:
    """The description that a server gives at /openapi.json, with the version of pyproject.toml."""

    def no_engine() -> NoReturn:
        raise NotImplementedError("nothing is served here")

    description: dict[str, Any] = create_app(Settings.model_construct(), no_engine).openapi()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return description | {"info": description["info"] | {"version": project["version"]}}


def settings_table() -> str:
    """One row for each setting."""
    rows = ["| flag | variable | default | takes | what it does |", "| --- | --- | --- | --- | --- |"]
    schema = Settings.model_json_schema()["properties"]
    for name, field in Settings.model_fields.items():
        switch = f" / `--no-{name.replace('_', '-')}`" if field.annotation is bool else ""
        columns = (
            f"`{flag(name)}`{switch}",
            f"`{ENV_PREFIX}{name.upper()}`",
            _default(field),
            _takes(schema[name]),
            str(field.description),
        )
        rows.append(f"| {' | '.join(column.replace('|', '&#124;') for column in columns)} |")
    return "\n".join(rows)


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is None or value in ((), ""):
        return "–"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def _takes(schema: dict[str, Any]) -> str:
    """The values of a JSON schema in a few words."""
    if "anyOf" in schema:
        return " or ".join(_takes(part) for part in schema["anyOf"] if part.get("type") != "null")
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    kind = schema.get("type", "any")
    if kind == "array" and schema.get("items"):
        kind = f"list of {_takes(schema['items'])}"
    bounds = [
        f"{sign} {int(schema[key]) if schema[key] == int(schema[key]) else schema[key]}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if key in schema
    ]
    return " ".join([str(kind), ", ".join(bounds)]).strip()


def api_tables(description: dict[str, Any]) -> str:
    """The paths, and a table of fields for each request body."""
    parts = ["| method | path | what |", "| --- | --- | --- |"]
    for path, operations in description["paths"].items():
        parts += [f"| {method.upper()} | `{path}` | {operation['summary']} |" for method, operation in operations.items()]
    for name, schema in description["components"]["schemas"].items():
        if "properties" not in schema or name == "Error":
            continue
        required = schema.get("required", ())
        parts += ["", f"### {name}", "", *schema.get("description", "").split("\n\n"), ""]
        parts += ["| field | takes | default | meaning |", "| --- | --- | --- | --- |"]
        for field, details in schema["properties"].items():
            default = "required" if field in required else f"`{json.dumps(details.get('default'))}`"
            columns = (f"`{field}`", _takes(details), default, details.get("description", ""))
            parts.append(f"| {' | '.join(column.replace('|', '&#124;') for column in columns)} |")
    return "\n".join(parts)


def _filled(name: str, text: str) -> str:
    """The page with `text` between its two marks."""
    page = (DOCS / name).read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def compose() -> str:
    """docker-compose.yml, which passes every setting on that it does not set itself."""
    names = [name for name in Settings.model_fields if name not in OF_THE_IMAGE | SET_BY_COMPOSE]
    before, _, rest = (ROOT / "docker-compose.yml").read_text(encoding="utf-8").partition(COMPOSE_BEGIN)
    _, _, after = rest.partition(COMPOSE_END)
    lines = "".join(f"      {ENV_PREFIX}{name.upper()}:\n" for name in names)
    return f"{before}{COMPOSE_BEGIN}{lines}{COMPOSE_END}{after}"


def prometheus_rule() -> str:
    """The rules of deploy/prometheus as the Prometheus operator takes them."""
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules/racer.yml").read_text(encoding="utf-8"))
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "racer-csd", "labels": {"app.kubernetes.io/name": "racer-csd"}},
        "spec": rules,
    }
    head = "# Made from deploy/prometheus/rules/racer.yml by tools/reference.py: the alerts, for the Prometheus operator.\n"
    text: str = yaml.safe_dump(manifest, sort_keys=False, width=1000)
    return head + text


def main() -> None:
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
