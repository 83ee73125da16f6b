"""Writes the dashboards' JSON from their description: python deploy/grafana/build.py. With --check it only compares."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from service import service
from speculation import speculation

DIRECTORY = Path(__file__).parent / "dashboards"


def main(check: bool) -> int:
    """Exit code: 1 if --check finds a file that is not what this writes."""
    stale = 0
    for name, built in (("speculation", speculation()), ("service", service())):
        path = DIRECTORY / f"{name}.json"
        text = json.dumps(built, indent=2) + "\n"
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{path} is not what deploy/grafana/build.py writes: run it\n")
            stale += 1
    return min(stale, 1)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
