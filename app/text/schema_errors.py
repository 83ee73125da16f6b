"""Checks the size of JSON schemas, and explains what is wrong with one without quoting it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from app.text.errors import GrammarError

MAX_SCHEMA = 128 * 1024  # characters of JSON
MAX_NESTING = 100  # levels of objects and arrays
MAX_PROPERTIES = 1000  # of one object: the cost is quadratic
MAX_PATTERNS = 32  # patternProperties of a schema: the cost is cubic
_KEYWORD = re.compile(r"\$?[A-Za-z]{1,40}")
MESSAGE_END = 1000  # characters examined at either end of a message
NO_WAY_ON = "NoExtension"  # in a message of llguidance: the grammar continues, but no token fits
_BOUND = r"\w{1,40} \([\d.e+-]{1,30}\)"
_COMPLEX = "is too large or too complex to follow."


def _unimplemented(found: re.Match[str]) -> str:
    names = [name for name in re.findall(r'"((?:[^"\\]|\\.)*)"', found[1]) if _KEYWORD.fullmatch(name)]
    return f"uses keywords that are not supported: {', '.join(names[:8])}." if names else "uses unknown keywords."


# llguidance's messages -> ours; the first match counts. Groups capture keywords, numbers and its own words only.
_PROBLEMS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (NO_WAY_ON, "leaves nothing that this model's vocabulary could say, or refers to itself without end."),
    (r"Unimplemented keys: (\[.*\])", _unimplemented),
    (r"(?s)regex parse error:.*\nerror: ([a-z ,-]{1,120})", r"has a pattern that is not supported: \1."),
    (r"(?i)regex", "has a pattern that cannot be used."),
    (rf"Unsatisfiable schema: ({_BOUND} is greater than {_BOUND})", r"admits no value: \1."),
    (r"Unsatisfiable schema", "admits no value."),
    (r"^(Pointer|Resource) ", "has a $ref that does not point to a place in it."),
    (r"Unknown format", "has a format that is not supported."),
    (r"Invalid type", "has a type that JSON does not know."),
    (r"oneOf constraints", "has a oneOf whose branches cannot be told apart; use anyOf."),
    (r"^(\w{1,40}) must be ([a-z ]{1,40})", r"is not valid: \1 must be \2."),
    (r"^Expected ([a-z ]{1,40}) for '(\w{1,40})'", r"is not valid: \2 must be a \1."),
    (r"recursion limit", f"nests deeper than {MAX_NESTING} levels."),
    (r"(?i)too (large|many|complex|big)|limit|fuel|max is", _COMPLEX),
)


def explain(message: str) -> str:
    """A sentence about the schema for an error message of llguidance."""
    if len(message) > 2 * MESSAGE_END:  # it quotes the schema between its own words
        message = f"{message[:MESSAGE_END]}\n{message[-MESSAGE_END:]}"
    for pattern, text in _PROBLEMS:
        found = re.search(pattern, message)
        if found is not None:
            return f"The schema {found.expand(text) if isinstance(text, str) else text(found)}"
    return "The schema is not a schema that this server can follow."


def check_bounds(schema: Mapping[str, Any]) -> None:
    """Raises GrammarError for a schema that is too large, too deep or too wide to compile."""
    properties = patterns = 0
    merges = False  # whether one object may combine the properties of several
    level: list[Any] = [schema]
    for _ in range(MAX_NESTING):
        for value in level:
            if isinstance(value, Mapping):
                own = _count(value, "properties")
                if own > MAX_PROPERTIES:
                    raise GrammarError(f"The schema has an object of more than {MAX_PROPERTIES} properties.")
                properties += own
                patterns += _count(value, "patternProperties")
                merges = merges or "allOf" in value or ("$ref" in value and own > 0)
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            break
    else:
        raise GrammarError(f"The schema nests deeper than {MAX_NESTING} levels.")
    if merges and properties > MAX_PROPERTIES:
        raise GrammarError(f"The schema has allOf, or a $ref beside others, and more than {MAX_PROPERTIES} properties.")
    if patterns > MAX_PATTERNS:
        raise GrammarError(f"The schema has more than {MAX_PATTERNS} patternProperties.")
    if len(json.dumps(schema, ensure_ascii=False)) > MAX_SCHEMA:
        raise GrammarError(f"The schema is larger than {MAX_SCHEMA} characters.")


def _count(value: Mapping[str, Any], name: str) -> int:
    members = value.get(name)
    return len(members) if isinstance(members, Mapping) else 0


def _inside(value: Any) -> list[Any]:
    members = value.values() if isinstance(value, Mapping) else value
    return [member for member in members if isinstance(member, Mapping | list)]
