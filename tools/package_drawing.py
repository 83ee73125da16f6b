"""Draws the packages (tools.packages) as SVG: rows of boxes, and arrows from the importer down to what it imports."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tools.packages import Drawing, arrange, read

HEIGHT, ROW, GAP, MARGIN, PADDING = 28, 62, 18, 30, 14  # pixels
BEND = 20  # width that an arrow takes in a row which it passes
SWEEPS = 50  # over all rows, until no box moves
CAPTION = (
    "An arrow leads from the importer to the imported; one that other arrows imply is left out.",
    "Dashed border: also imports files of app.engine itself.",
)
STYLE = (
    "text{font:13px sans-serif;fill:#222}.box{fill:#eee;stroke:#777}.engine{fill:#c8e6c9}.back{stroke-dasharray:5 3}"
    ".frame{fill:#f7f7f7;stroke:#bbb}.arrow{stroke:#555;fill:none;marker-end:url(#tip)}.against{stroke-dasharray:3 3}"
)
TIP = (
    '<defs><marker id="tip" markerWidth="9" markerHeight="9" refX="7" refY="4" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>'
)


def drawing() -> str:
    """docs/images/packages.svg."""
    return draw(arrange(read()))


def draw(plan: Drawing) -> str:
    return _Canvas(plan).svg()


class _Canvas:
    """Places of boxes and of the bends of long arrows, worked out from the rows."""

    def __init__(self, plan: Drawing) -> None:
        self.plan = plan
        self.row = {name: place for place, row in enumerate(plan.rows) for name in row}
        self.frame_of = {members[0]: members for members in plan.frames}
        self.rows = [list(row) for row in plan.rows]
        self.paths = [self._path(*arrow) for arrow in sorted(plan.arrows)]
        self.above: dict[str, list[str]] = {name: [] for row in self.rows for name in row}
        self.below: dict[str, list[str]] = {name: [] for row in self.rows for name in row}
        for path in self.paths:
            for upper, lower in pairwise(path):
                self.below[upper].append(lower)
                self.above[lower].append(upper)
        self.x: dict[str, float] = {}  # centres
        self._place()

    def _path(self, upper: str, lower: str) -> list[str]:
        """The boxes of an arrow, with a bend in each row between them."""
        start = self._last_row(upper) if lower not in self.frame_of.get(upper, ()) else self.row[upper]
        bends = []
        for place in range(start + 1, self.row[lower]):
            bends.append(f"{upper}>{lower}:{place}")
            self.row[bends[-1]] = place
            self.rows[place].append(bends[-1])
        return [upper, *bends, lower]

    def _last_row(self, name: str) -> int:
        return max(self.row[member] for member in self.frame_of.get(name, [name]))

    def _place(self) -> None:
        for row in self.rows:
            for place, name in enumerate(row):
                self.x[name] = 120.0 * (place - len(row) / 2)
        for _ in range(SWEEPS):
            for row in reversed(self.rows):
                self._settle(row, self.below)
            for row in self.rows:
                self._settle(row, self.above)
        shift = MARGIN + PADDING - min(self.x[name] - _width(name) / 2 for name in self.x)
        self.x = {name: x + shift for name, x in self.x.items()}

    def _settle(self, row: list[str], near: dict[str, list[str]]) -> None:
        """Each at the mean of its neighbours in the rows above or below, as near as it can be beside the others of its row."""
        wanted = {
            name: sum(self.x[other] for other in near[name]) / len(near[name]) if near[name] else self.x[name] for name in row
        }
        row.sort(key=lambda name: (wanted[name], name))
        steps = [(_width(a) + _width(b)) / 2 + GAP for a, b in pairwise(row)]
        right = [wanted[name] for name in row]
        left = list(right)
        for place, step in enumerate(steps):
            right[place + 1] = max(right[place + 1], right[place] + step)
        for place, step in reversed(list(enumerate(steps))):
            left[place] = min(left[place], left[place + 1] - step)
        for name, a, b in zip(row, left, right, strict=True):
            self.x[name] = (a + b) / 2

    def svg(self) -> str:
        boxes = [name for name in self.x if ":" not in name]
        parts = [self._frame(members) for members in self.plan.frames]
        parts += [self._arrow(path) for path in self.paths]
        parts += [self._against(upper, lower) for upper, lower in sorted(self.plan.against)]
        parts += [self._box(name) for name in sorted(boxes)]
        bottom = self._top(len(self.rows)) - 10
        for line in CAPTION:
            bottom += 20
            parts.append(f'<text x="{MARGIN}" y="{bottom:.0f}">{line}</text>')
        width = round(max(self.x[name] + _width(name) / 2 for name in boxes) + MARGIN + PADDING)
        height = round(bottom + MARGIN)
        size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n'
            f"<title>The packages and what each imports</title>\n<style>{STYLE}</style>\n{TIP}\n"
            f'<rect width="{width}" height="{height}" fill="#fff"/>\n'
        )
        return head + "\n".join(parts) + "\n</svg>\n"

    def _top(self, row: int) -> float:
        return MARGIN + ROW * row

    def _frame(self, members: Sequence[str]) -> str:
        left = min(self.x[name] - _width(name) / 2 for name in members) - PADDING
        right = max(self.x[name] + _width(name) / 2 for name in members) + PADDING
        top, bottom = self._top(self.row[members[0]]) - PADDING, self._top(self._last_row(members[0])) + HEIGHT + PADDING
        size = f'width="{right - left:.0f}" height="{bottom - top:.0f}"'
        return f'<rect x="{left:.0f}" y="{top:.0f}" {size} rx="8" class="frame"/>'

    def _box(self, name: str) -> str:
        kind = "box" + " engine" * name.startswith("app.engine") + " back" * (name in self.plan.back)
        x, y, width = self.x[name], self._top(self.row[name]), _width(name)
        return (
            f'<rect x="{x - width / 2:.0f}" y="{y:.0f}" width="{width}" height="{HEIGHT}" rx="6" class="{kind}"/>'
            f'<text x="{x:.0f}" y="{y + 19:.0f}" text-anchor="middle">{name}</text>'
        )

    def _arrow(self, path: Sequence[str]) -> str:
        upper, lower = path[0], path[-1]
        leaves_frame = upper in self.frame_of and lower not in self.frame_of[upper]
        y = self._top(self._last_row(upper) if leaves_frame else self.row[upper]) + HEIGHT + PADDING * leaves_frame
        x = self.x[upper]
        line = f"M{x:.0f} {y:.0f}"
        for name in path[1:]:
            enters_frame = name in self.frame_of
            to_x, to_y = self.x[name], self._top(self.row[name]) - PADDING * enters_frame
            middle = (y + to_y) / 2
            line += f" C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}"
            x, y = to_x, to_y
            if name != lower:
                y += HEIGHT
                line += f" V{y:.0f}"
        return f'<path d="{line}" class="arrow"/>'

    def _against(self, importer: str, imported: str) -> str:
        """Round the left side, from one box's edge to the other's."""
        x, y = self.x[importer] - _width(importer) / 2, self._top(self.row[importer]) + HEIGHT / 2
        to_x, to_y = self.x[imported] - _width(imported) / 2, self._top(self.row[imported]) + HEIGHT / 2
        side = min(x, to_x) - 2 * PADDING
        line = f"M{x:.0f} {y:.0f} C{side:.0f} {y:.0f} {side:.0f} {to_y:.0f} {to_x:.0f} {to_y:.0f}"
        return f'<path d="{line}" class="arrow against"/>'


def _width(name: str) -> int:
    return BEND if ":" in name else 26 + round(7.5 * len(name))
