"""The limits of length that CONTRIBUTING.md sets."""

from __future__ import annotations

from pathlib import Path

from tools.reference import ROOT

CODE = ("app", "bench", "csd", "deploy", "docker", "racer", "tools")
FILE_LINES = 300  # a file has fewer
README_LINES = 90  # the README has no more


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_every_file_of_code_has_under_300_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): lines(path) for name in CODE for path in (ROOT / name).rglob("*.py")}
    assert len(lengths) > 100
    assert {name: length for name, length in lengths.items() if length >= FILE_LINES} == {}
    assert f"under {FILE_LINES} lines" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_readme_has_at_most_90_lines() -> None:
    assert lines(ROOT / "README.md") <= README_LINES
