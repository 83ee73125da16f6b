"""The report as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def as_markdown(report: dict[str, Any], plots: Sequence[str]) -> str:
    """The content of report.md; plots: file names next to it."""
    environment, modes = report["environment"], report["modes"]
    parts = [
        f"# Benchmark of {environment.get('model', 'a model')}",
        _environment(environment),
        "## Overall",
        _overall(modes),
        "## Speedup by category",
        _by_category(modes, "speedup", "x"),
        "## Mean accepted tokens (MAT) by category",
        _by_category(modes, "mat", ""),
        "## Milliseconds per verify step",
        _steps(modes),
        "## Where the tokens came from",
        _sources(modes),
        *[f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in plots],
        str(environment.get("method", "")),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [map(cell, head), ["---", *["---:"] * (len(head) - 1)], *(map(cell, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    """A name as it may stand in a table: on one line, without bars of its own."""
    return " ".join(text.split()).replace("|", "\\|")


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    return "–" if value is None else f"{value:.{digits}f}{unit}"


def _environment(environment: dict[str, Any]) -> str:
    said = []
    if "params" in environment:
        said.append(f"{environment['params'] / 1e6:.0f} M parameters, {environment['dtype']} on {environment['device']}")
    if "cpu" in environment:
        said.append(f"{environment['cpu']}, {environment['threads']} threads")
    if "settings" in environment:
        settings = environment["settings"]
        state = "warm (copy-logit rows outlive a question)" if settings["warm"] else "cold (no text outlives a question)"
        said.append(
            f"{environment['questions']} questions, {settings['max_tokens']} tokens at most, "
            f"temperature {settings['temperature']}, seed {settings['seed']}, state {state}"
        )
    if not environment.get("tree_attention", True):
        said.append("**the model does not support tree attention: every mode of ours decoded plainly**")
    if environment.get("status") == "partial":
        said.append("**the run was not finished**")
    if environment.get("carried"):
        said.append(f"carried from question to question, each mode its own: {', '.join(environment['carried'])}")
    if environment.get("prior_rows") is not None:
        said.append(f"prior rows of {environment['prior_rows']} tokens, the same for all modes")
    if environment.get("resumed"):
        said.append("the run was resumed: what is carried began anew there")
    if environment.get("skipped"):
        said.append(f"{len(environment['skipped'])} questions were left out: too long for the model's context")
    text = "\n".join(f"- {line}" for line in said)
    return f"{text}\n\n    {environment['command']}" if "command" in environment else text


def _overall(modes: dict[str, Any]) -> str:
    rows = []
    for name, mode in modes.items():
        one = mode["overall"]
        interval = f"{number(one['speedup_low'])} – {number(one['speedup_high'])}"
        of_total = f"{number(one['speedup_total_low'])} – {number(one['speedup_total_high'])}"
        equal = one["equal_to_plain"]
        memory = mode["peak_memory_bytes"]
        rows.append(
            [
                name,
                number(one["speedup"], unit="x"),
                interval,
                number(one["speedup_total"], unit="x"),
                of_total,
                number(one["speedup_decode"], unit="x"),
                number(one["mat"]),
                number(one["drafted_per_step"], 1),
                number(one["tokens_per_s"], 1),
                number(None if equal is None else 100 * equal, 0, "%"),
                number(None if memory is None else memory / 2**20, 0),
            ]
        )
    head = ["mode", "speedup", "95%", "total", "95%", "decode", "MAT", "drafted/step", "tokens/s", "equal to plain", "peak MiB"]
    return table(head, rows)


def _by_category(modes: dict[str, Any], figure: str, unit: str) -> str:
    categories = list(next(iter(modes.values()))["categories"])
    rows = [
        [
            name,
            *[number(mode["categories"][category][figure], unit=unit) for category in categories],
            number(mode["overall"][figure], unit=unit),
        ]
        for name, mode in modes.items()
    ]
    return table(["mode", *categories, "overall"], rows)


def _steps(modes: dict[str, Any]) -> str:
    phases = list(next((mode["step_ms"] for mode in modes.values() if mode["step_ms"]), {}))
    rows = [[name, *[number(mode["step_ms"].get(phase), 3) for phase in phases]] for name, mode in modes.items()]
    return table(["mode", *phases], [row for row in rows if any(cell != "–" for cell in row[1:])]) if phases else ""


def _sources(modes: dict[str, Any]) -> str:
    names = list(next((mode["sources"] for mode in modes.values() if mode["sources"]), {}))
    rows = [
        [name, *[number(100 * mode["sources"].get(source, 0.0), 1, "%") for source in names]]
        for name, mode in modes.items()
        if mode["sources"]
    ]
    return table(["mode", *names], rows) if names else ""
