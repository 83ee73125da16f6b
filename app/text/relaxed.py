"""Removes the keywords from a JSON schema that the grammar library does not enforce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.text.schema_errors import check_bounds

# Formats of strings that the grammar library enforces.
FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"})
_ONE = ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
_LISTED = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


@dataclass(frozen=True, slots=True)
class Relaxed:
    """schema: what is enforced. dropped: the keywords removed that would have restricted the answer."""

    schema: dict[str, Any]
    dropped: frozenset[str] = field(default_factory=frozenset)


def relaxed(schema: Mapping[str, Any]) -> Relaxed:
    """The schema without `uniqueItems` and unknown formats. Raises GrammarError for one that is too large or too deep."""
    check_bounds(schema)
    dropped: set[str] = set()
    return Relaxed(_without(schema, dropped), frozenset(dropped))


def _without(schema: Mapping[str, Any], dropped: set[str]) -> dict[str, Any]:
    kept = dict(schema)
    if "uniqueItems" in kept and kept.pop("uniqueItems") is not False:
        dropped.add("uniqueItems")
    known = kept.get("format")
    if isinstance(known, str) and known not in FORMATS:
        del kept["format"]
        kinds = kept.get("type", "string")
        if "string" in (kinds if isinstance(kinds, list) else [kinds]):  # formats restrict only strings
            dropped.add("format")
    for name in _ONE:
        if isinstance(kept.get(name), dict):
            kept[name] = _without(kept[name], dropped)
    for name in _LISTED:
        if isinstance(kept.get(name), list):
            kept[name] = [_without(part, dropped) if isinstance(part, dict) else part for part in kept[name]]
    for name in _NAMED:
        if isinstance(kept.get(name), dict):
            kept[name] = {key: _without(part, dropped) if isinstance(part, dict) else part for key, part in kept[name].items()}
    return kept
