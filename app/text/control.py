"""Keeps the names of control tokens in a user's text plain text, whatever the chat template does with them."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import Any

from tokenizers import Tokenizer

# Private-use characters that replace those of a name while the template is rendered: planes 15 and 16, then the BMP's.
_STAND_INS = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE), range(0xE000, 0xF900))
# An escaped stand-in, at any position of a text.
_ESCAPE = re.compile(r"(?=(\\u[0-9a-f]{4}(?:\\u[0-9a-f]{4})?|\\U[0-9a-f]{8}))")
# Some models mark turns with added tokens that are not flagged as special.
_MARK = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shield:
    """Values with the characters of control names replaced by stand-ins. back: stand-in -> character."""

    values: tuple[Any, ...]
    back: dict[int, str] = field(default_factory=dict)

    def restored(self, text: str) -> str:
        """The text with the user's own characters restored."""
        for stand_in in map(chr, self.back):  # a template may have escaped them as JSON or Python does
            text = text.replace(json.dumps(stand_in)[1:-1], stand_in).replace(repr(stand_in)[1:-1], stand_in)
        return text.translate(self.back)


class ControlNames:
    """The control tokens of one tokenizer. Thread-safe."""

    def __init__(self, backend: Any) -> None:
        """backend: a `tokenizers.Tokenizer`."""
        self._backend = backend
        added = backend.get_added_tokens_decoder().values()
        names = {str(token.content) for token in added if token.special or _MARK.fullmatch(token.content)}
        self.names = frozenset(name for name in names if len(name) > 1)
        self._pattern = re.compile(any_of(self.names)) if self.names else None
        self._renamed: _RenamedTokenizer | None = None
        self._lock = threading.Lock()

    def shield(self, *values: Any, source: str = "") -> Shield:
        """JSON values with the control names in their strings replaced by stand-ins that occur neither in them nor in the
        template's source. Raises ValueError where no stand-ins are left."""
        pattern = self._pattern
        if pattern is None:
            return Shield(values)
        found = {name for text in _strings(values) for name in pattern.findall(text)}
        if not found:
            return Shield(values)
        used = set(source).union(*(set(text) for text in _strings(values) if not text.isascii()))
        used.update(_character(escape) for text in _strings(values) for escape in _ESCAPE.findall(text))
        characters = sorted(set("".join(found)))
        free = (code for code in chain(*_STAND_INS) if chr(code) not in used)
        table = {ord(character): chr(code) for character, code in zip(characters, free, strict=False)}
        if len(table) < len(characters):
            raise ValueError("The text holds too many private-use characters.")

        def spelled(text: str) -> str:
            return pattern.sub(lambda name: name[0].translate(table), text)

        return Shield(
            tuple(_mapped(value, spelled) for value in values), {ord(stand_in): chr(code) for code, stand_in in table.items()}
        )

    def encode(self, rendered: str, shield: Shield) -> list[int]:
        """Ids of a rendered text: control names from the template become their tokens, shielded ones plain text."""
        if not shield.back or self._pattern is None:
            raise ValueError("There are no control names to keep apart.")
        with self._lock:
            if self._renamed is None:
                self._renamed = _RenamedTokenizer(self._backend, self.names)
            renamed = self._renamed
        marked = self._pattern.sub(lambda name: renamed.marks[name[0]], rendered)
        return renamed.encode(shield.restored(marked))


def any_of(names: Iterable[str]) -> str:
    """A regular expression for any of these names, the longest first.

    Grouped by common prefixes, so that of thousands of names only a few are tried at each position.
    """
    by_first: dict[str, list[str]] = {}
    for name in names:
        by_first.setdefault(name[:1], []).append(name)
    may_end = by_first.pop("", None) is not None
    options = []
    for alike in by_first.values():
        shared = "".join(one for one, *_ in takewhile(_same, zip(*alike, strict=False)))
        options.append(re.escape(shared) + any_of({name[len(shared) :] for name in alike}))
    if not options:
        return ""
    whole = "|".join(options)
    return f"(?:{whole})?" if may_end else f"(?:{whole})" if len(options) > 1 else whole


def _same(characters: tuple[str, ...]) -> bool:
    return len(set(characters)) == 1


class _RenamedTokenizer:
    """A copy of the tokenizer whose control tokens have random names, which no text can contain."""

    def __init__(self, backend: Any, names: frozenset[str]) -> None:
        drawn = secrets.token_hex(8)
        self.marks = {name: f"\ufdd0{drawn}{place}\ufdd1" for place, name in enumerate(sorted(names))}
        state = json.loads(backend.to_str())
        ids = {}
        for token in state["added_tokens"]:
            token["content"] = self.marks.get(token["content"], token["content"])
            ids[token["content"]] = token["id"]
        _rename(state["model"], self.marks)
        self._copy = Tokenizer.from_str(json.dumps(state))
        # tokens outside the model's own vocabulary get their ids in the order in which they are added
        self._ids = {self._copy.token_to_id(content): token_id for content, token_id in ids.items()}

    def encode(self, text: str) -> list[int]:
        ids = self._copy.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return [self._ids.get(token, token) for token in ids]


def _rename(model: dict[str, Any], marks: dict[str, str]) -> None:
    """Rename control tokens in the vocabulary too, where plain text could otherwise match them as pieces."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {marks.get(piece, piece): token for piece, token in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[marks.get(piece, piece), score] for piece, score in vocabulary]
    if model.get("unk_token") in marks:
        model["unk_token"] = marks[model["unk_token"]]
    if "merges" in model:
        merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
        model["merges"] = [pair for pair in merges if not {*pair, "".join(pair)} & marks.keys()]


def _character(escape: str) -> str:
    """The first character of an escape, as JSON or Python writes it."""
    if escape.startswith("\\U"):
        code = int(escape[2:], 16)
        return chr(code) if code <= 0x10FFFF else ""
    return str(json.loads(f'"{escape}"'))[0]


def _strings(values: Iterable[Any]) -> Iterator[str]:
    """Every string in JSON values, names of members included."""
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            waiting += value


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): _mapped(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value
