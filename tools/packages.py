"""The packages and what each imports, read from the code: boxes in rows, so that arrows point down.

A box is a package under app or app.engine, one of the other top-level packages, or a file directly in app. The files directly
in app.engine share one box.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import grimp

TOP = ("app", "bench", "csd", "racer")
PARTED = ("app", "app.engine")  # packages whose sub-packages have a box each
Imports = Mapping[str, frozenset[str]]  # box to the boxes that it imports


@dataclass(frozen=True, slots=True)
class Drawing:
    """rows: names of boxes, top row first. arrows: importer to imported; one that other arrows imply is left out.

    frames: groups of boxes that import each other, each with its outermost package first. against: arrows within a frame that
    do not point down. back: members that import the first one.
    """

    rows: list[list[str]]
    arrows: set[tuple[str, str]]
    frames: list[list[str]]
    against: set[tuple[str, str]]
    back: set[str]


def read() -> Counter[tuple[str, str]]:
    """How many imports there are from one box to another."""
    graph = grimp.build_graph(*TOP, cache_dir=None)
    counts: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            pair = box_of(module, graph), box_of(imported, graph)
            if pair[0] != pair[1]:
                counts[pair] += 1
    return counts


def box_of(module: str, graph: grimp.ImportGraph) -> str:
    box, *parts = module.split(".")
    for part in parts:
        child = f"{box}.{part}"
        if box not in PARTED or (box != "app" and not graph.find_children(child)):
            break
        box = child
    return box


def arrange(counts: Mapping[tuple[str, str], int]) -> Drawing:
    """Boxes that import each other are treated as one; every other arrow points down."""
    imports = _imports(counts)
    groups = _groups(imports)
    group_of = {name: members[0] for members in groups for name in members}
    between = _imports((group_of[a], group_of[b]) for a, b in counts if group_of[a] != group_of[b])
    inner = {members[0]: _inside(members, counts) for members in groups if len(members) > 1}
    heights = {members[0]: len(inner[members[0]][0]) if members[0] in inner else 1 for members in groups}
    rows: list[list[str]] = []
    arrows = _reduced(between)
    against: set[tuple[str, str]] = set()
    for first, top in sorted(_tops(between, heights).items()):
        own_rows, own_arrows, own_against = inner.get(first, ([[first]], set(), set()))
        arrows |= own_arrows
        against |= own_against
        rows.extend([] for _ in range(top + len(own_rows) - len(rows)))
        for place, row in enumerate(own_rows):
            rows[top + place].extend(row)
    frames = [members for members in groups if len(members) > 1]
    back = {name for first, *others in frames for name in others if first in imports[name]}
    return Drawing(rows, arrows, frames, against, back)


def _imports(pairs: Iterable[tuple[str, str]]) -> Imports:
    found: dict[str, set[str]] = {}
    for importer, imported in pairs:
        found.setdefault(importer, set()).add(imported)
        found.setdefault(imported, set())
    return {name: frozenset(found[name]) for name in sorted(found)}


def _reach(imports: Imports) -> dict[str, set[str]]:
    """What each box imports, directly or through others."""
    reach = {name: set(imported) for name, imported in imports.items()}
    for through in imports:
        for found in reach.values():
            if through in found:
                found.update(reach[through])
    return reach


def _groups(imports: Imports) -> list[list[str]]:
    """Boxes that import each other, directly or through others; the package that holds the others comes first."""
    reach = _reach(imports)
    groups: list[list[str]] = []
    for name in sorted(imports, key=lambda name: (name.count("."), name)):
        home = next((group for group in groups if name in reach[group[0]] and group[0] in reach[name]), None)
        if home is None:
            groups.append([name])
        else:
            home.append(name)
    return groups


def _reduced(imports: Imports) -> set[tuple[str, str]]:
    """The arrows that no path of other arrows implies. imports: without cycles."""
    reach = _reach(imports)
    return {
        (name, imported)
        for name, all_imported in imports.items()
        for imported in all_imported
        if not any(imported in reach[other] for other in all_imported)
    }


def _tops(imports: Imports, heights: Mapping[str, int]) -> dict[str, int]:
    """First row of each box or frame: directly below the lowest of those that import it."""
    tops = dict.fromkeys(heights, 0)
    for _ in heights:
        for name, all_imported in imports.items():
            for imported in all_imported:
                tops[imported] = max(tops[imported], tops[name] + heights[name])
    return tops


def _inside(
    members: list[str], counts: Mapping[tuple[str, str], int]
) -> tuple[list[list[str]], set[tuple[str, str]], set[tuple[str, str]]]:
    """Rows, arrows and arrows against the order of a frame: its first member on top, the others below without cycles."""
    first, *others = members
    pairs = {(a, b) for a, b in counts if a in others and b in others}
    against: set[tuple[str, str]] = set()
    while True:  # take out the weakest arrow of what is left of a cycle
        reach = _reach(_imports(pairs))
        cyclic = [(a, b) for a, b in pairs if a in reach[b]]
        if not cyclic:
            break
        weakest = min(cyclic, key=lambda pair: (counts[pair], pair))
        pairs.remove(weakest)
        against.add(weakest)
    own = pairs | {(first, name) for name in others if (first, name) in counts}
    imports = _imports([*own, *((first, name) for name in others if not any(b == name for _, b in own))])
    tops = _tops(imports, dict.fromkeys(members, 1))
    rows: list[list[str]] = [[] for _ in range(max(tops.values()) + 1)]
    for name in members:
        rows[tops[name]].append(name)
    return rows, _reduced(imports), against
