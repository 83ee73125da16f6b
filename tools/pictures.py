"""Draws the worked example (tools.example) as SVG: a draft tree, and the walk down it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from racer.tree import Source
from tools.example import LAMBDA, SEEN, Z_DRAFT, Z_TARGET, Example, exact, gate, rescued

COLUMN, ROW, WIDTH, HEIGHT, MARGIN = 118, 46, 84, 30, 20  # pixels
FILL = {Source.RETRIEVAL: "#c8e6c9", Source.COPY_LOGIT: "#b3e5fc", Source.TARGET: "#eeeeee", Source.DRAFT_MODEL: "#e1bee7"}
LEGEND = (
    (Source.TARGET, "the root, or the target's own token"),
    (Source.RETRIEVAL, "retrieval"),
    (Source.COPY_LOGIT, "copy-logit"),
)


def pictures() -> dict[str, str]:
    """File name to SVG."""
    first, second = exact(), rescued()
    kept = f"{first.walk.accepted} accepted + 1 of the target: {', '.join(first.emitted)}"
    margin = Z_DRAFT - Z_TARGET
    rescue = (
        f"“6” for “six”: {SEEN} > {LAMBDA:g} and {margin:.1f} ≥ ln 0.01 = {gate():.2f}; emitted: {', '.join(second.emitted)}"
    )
    return {
        "tree.svg": _draw(first, ["One forward pass verifies all nodes"], walked=False),
        "walk.svg": _draw(first, [kept], walked=True),
        "rescue.svg": _draw(second, [rescue], walked=True),
    }


def _places(example: Example) -> list[tuple[int, int]]:
    """Left upper corner of each node: columns are depths, a first child stands in its parent's row."""
    parents = example.tree.parents.tolist()
    rows = [0] * len(parents)
    next_row = 0

    def place(node: int) -> None:
        nonlocal next_row
        rows[node] = next_row
        children = [child for child, parent in enumerate(parents) if parent == node]
        for number, child in enumerate(children):
            if number:
                next_row += 1
            place(child)

    place(0)
    depth = example.tree.depth.tolist()
    return [(MARGIN + COLUMN * d, MARGIN + ROW * row) for d, row in zip(depth, rows, strict=True)]


def _draw(example: Example, captions: Sequence[str], *, walked: bool) -> str:
    tree, places = example.tree, _places(example)
    path = example.walk.path if walked else ()
    marked = {example.walk.path[place + 1] for place in example.walk.rescued} if walked else set()
    parts = []
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        (x1, y1), (x2, y2) = places[parent], places[node]
        kept = node in path
        parts.append(_line(x1 + WIDTH, y1 + HEIGHT // 2, x2, y2 + HEIGHT // 2, kept=kept))
    for node, word in enumerate(example.words):
        parts.append(_box(*places[node], word, FILL[Source(int(tree.source[node]))], kept=node in path, rescued=node in marked))
    bottom = max(y for _, y in places) + HEIGHT
    if walked:
        x, y = places[path[-1]]
        below = bottom + ROW - HEIGHT
        parts.insert(0, f'<path d="M{x + WIDTH // 2} {y + HEIGHT} V{below}" class="own"/>')  # behind the boxes
        parts.append(_box(x, below, example.emitted[-1], FILL[Source.TARGET], kept=True, rescued=False))
        bottom = below + HEIGHT
    width = max(x for x, _ in places) + WIDTH + MARGIN
    for caption in captions:
        bottom += 28
        parts.append(f'<text x="{MARGIN}" y="{bottom}">{escape(caption)}</text>')
    bottom += 14
    x = MARGIN
    for source, meaning in LEGEND:
        parts.append(f'<rect x="{x}" y="{bottom}" width="14" height="14" fill="{FILL[source]}" stroke="#555"/>')
        parts.append(f'<text x="{x + 20}" y="{bottom + 12}">{escape(meaning)}</text>')
        x += 40 + 8 * len(meaning)
    height = bottom + 14 + MARGIN
    title = escape("; ".join(captions))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img">\n'
        f"<title>{title}</title>\n"
        "<style>text{font:14px sans-serif;fill:#222}.edge{stroke:#999;fill:none}.kept{stroke:#1b5e20;stroke-width:3;fill:none}"
        ".own{stroke:#555;stroke-dasharray:4 3;fill:none}</style>\n"
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def _line(x1: int, y1: int, x2: int, y2: int, *, kept: bool) -> str:
    middle = (x1 + x2) // 2
    return f'<path d="M{x1} {y1} C{middle} {y1} {middle} {y2} {x2} {y2}" class="{"kept" if kept else "edge"}"/>'


def _box(x: int, y: int, word: str, fill: str, *, kept: bool, rescued: bool) -> str:
    border = 'stroke="#1b5e20" stroke-width="3"' if kept else 'stroke="#999"'
    under = ' text-decoration="underline"' if rescued else ""
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{fill}" {border}/>'
        f'<text x="{x + WIDTH // 2}" y="{y + 20}" text-anchor="middle"{under}>{escape(word)}</text>'
    )
