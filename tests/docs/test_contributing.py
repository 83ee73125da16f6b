"""The limits of length that CONTRIBUTING.md sets."""

from __future__ import annotations

from pathlib import Path

from tools.reference import ROOT

README_LINES = 90  # the README has no more


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_the_readme_has_at_most_90_lines() -> None:
    assert lines(ROOT / "README.md") <= README_LINES
