"""The drawing of the packages: how it is arranged, and that docs/architecture.md lists what it shows."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from tools.package_drawing import draw
from tools.packages import arrange, read
from tools.reference import DOCS

# a imports b both directly and through c; b holds b.x and b.y, which import each other; d stands at the bottom
COUNTS = {
    ("a", "b"): 1,
    ("a", "c"): 1,
    ("c", "b"): 2,
    ("b", "b.x"): 1,
    ("b.x", "b.y"): 3,
    ("b.y", "b.x"): 1,
    ("b.y", "b"): 1,
    ("b", "d"): 1,
    ("b.x", "d"): 1,
    ("a", "d"): 1,
}


def test_arrows_point_down_and_none_repeats_a_path() -> None:
    plan = arrange(COUNTS)
    assert plan.rows == [["a"], ["c"], ["b"], ["b.x"], ["b.y"], ["d"]]
    assert plan.arrows == {("a", "c"), ("c", "b"), ("b", "b.x"), ("b.x", "b.y"), ("b", "d")}


def test_packages_that_import_each_other_share_a_frame_and_the_weaker_arrow_points_up() -> None:
    plan = arrange(COUNTS)
    assert plan.frames == [["b", "b.x", "b.y"]]
    assert plan.against == {("b.y", "b.x")}
    assert plan.back == {"b.y"}


def test_every_box_and_every_arrow_is_drawn() -> None:
    plan = arrange(COUNTS)
    root = ElementTree.fromstring(draw(plan))
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {name for row in plan.rows for name in row} <= texts
    arrows = [e for e in root.iter("{http://www.w3.org/2000/svg}path") if e.get("class", "").startswith("arrow")]
    assert len(arrows) == len(plan.arrows) + len(plan.against)


def test_the_table_of_architecture_lists_every_package_and_invents_none() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    table = page.split("## Packages\n", 1)[1].split("\n## ", 1)[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    listed = {
        path.removesuffix("/").removesuffix(".py").replace("/", ".") for cell in cells for path in re.findall("`(.+?)`", cell)
    }
    assert listed == {name for pair in read() for name in pair}
