"""The documentation: it builds strictly, asks nobody outside, and names what exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.api.auth import OPEN_PATHS
from app.api.routes import PATHS
from app.metrics import Metrics
from app.settings import ENV_PREFIX, Settings
from tools import example
from tools.reference import DOCS, ROOT, generated

PAGES = sorted(DOCS.glob("*.md"))
OUTSIDE = re.compile(
    r"""<(?:script|img|iframe)[^>]*\bsrc=["']?https?:|<link[^>]*\bhref=["']?https?:|url\(["']?https?:|@import"""
)
FILE = re.compile(r"`((?:app|bench|csd|deploy|docker|racer|tests|tools)/[\w./-]+\.\w+)`")


def test_it_builds_without_a_warning_and_asks_nobody_outside(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {path.stem for path in tmp_path.glob("*.html")}
    assert built == {page.stem for page in PAGES} | {"404"}
    for path in (*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")):
        assert not OUTSIDE.search(path.read_text(encoding="utf-8")), path.name


def test_what_repeats_the_code_is_current() -> None:
    stale = [path.name for path, text in generated().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run: make reference"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in FILE.findall(text):
        assert (ROOT / name).exists(), name
    own = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}
    for source in (ROOT / "app" / "commands").glob("*.py"):
        own |= set(re.findall(rf'envvar="({ENV_PREFIX}\w+)"', source.read_text(encoding="utf-8")))
    assert set(re.findall(rf"\b{ENV_PREFIX}[A-Z_]+[A-Z]\b", text)) <= own
    metrics = Metrics(PATHS)
    metrics.watch(lambda: None)
    page_of_metrics = metrics.render().decode()
    for name in re.findall(r"`(racer_[a-z_]+)\b", text):
        assert name in page_of_metrics or name == "racer_packed", name
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake ([a-z]+)\b(?=[`\s]*[`\n])", text):
        assert f"\n{target}:" in made, target


def test_the_worked_example_is_what_the_page_says() -> None:
    page = " ".join((DOCS / "how-it-works.md").read_text(encoding="utf-8").split())
    exact, rescued = example.exact(), example.rescued()
    assert len(exact.tree) == example.BUDGET == 14
    assert f"{example.BREADTH}".replace("3", "three") + " successors per token, 14 nodes" in page
    assert exact.emitted == ["four", "five", ",", "six"]
    assert "choices in the example are *four*, *five*, *,* and then *six*" in page
    assert exact.walk.accepted == 3
    assert "Three drafted tokens are accepted" in page
    assert rescued.emitted == ["four", "five", "6", "seven"]
    assert rescued.walk.rescued == (2,)
    assert f"as the *correction memory* counts: {example.SEEN} here" in page
    difference = f"{example.Z_DRAFT - example.Z_TARGET:.1f}".replace("-", "\u2212")
    assert f"{example.Z_DRAFT} against {example.Z_TARGET}, a difference of {difference}" in page
    assert f"ln {example.TAU} = {example.gate():.2f}".replace("-", "\u2212") in page


def test_paths_that_want_no_key() -> None:
    page = (DOCS / "security.md").read_text(encoding="utf-8")
    sentence = page[page.index("by default `/`") : page.index("They tell")]
    assert set(re.findall(r"`(/[\w.]*)`", sentence)) == {path for paths in OPEN_PATHS.values() for path in paths}
