"""The command `racer-csd bench`: compare ways to decode, and time the drafting kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from app.commands.options import dtype_option
from app.process import stoppable
from app.settings import SettingsError
from bench.modes import MODES
from bench.quality.modes import MODES as QUALITY_MODES


class DataGroup(TyperGroup):
    """`--data` takes every word up to the next flag, so that a shell's *.jsonl works."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return list(super().parse_args(ctx, spread_data(args)))


class DataCommand(TyperCommand):
    """The same for a command of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return list(super().parse_args(ctx, spread_data(args)))


bench = typer.Typer(
    name="bench",
    cls=DataGroup,
    help="Compare ways to decode on the same questions; `bench COMMAND` measures other things: serve puts load on a running "
    "server, gauge checks its speedup gauge, quality says what csd costs, kernels times drafting.",
    invoke_without_command=True,
    add_completion=False,
)


def prior_rows_option() -> Any:
    """The flag --prior-rows."""
    said = "Tokens whose successors are worked out before the clock runs; 0: none; as many as `serve` makes where not given"
    return typer.Option(None, min=0, help=said)


def spread_data(words: list[str]) -> list[str]:
    """`--data a b` as `--data a --data b`."""
    spread: list[str] = []
    taking = False
    for word in words:
        if taking and not word.startswith("-"):
            if spread[-1] != "--data":
                spread.append("--data")
            spread.append(word)
            continue
        taking = word == "--data"
        spread.append(word)
    return spread


def fractions(part: str) -> tuple[float, float]:
    """`0.667:1` as two fractions. Raises SettingsError."""
    first, _, last = part.partition(":")
    try:
        bounds = (float(first), float(last))
    except ValueError:
        bounds = (1.0, 0.0)
    if not 0.0 <= bounds[0] < bounds[1] <= 1.0:
        raise SettingsError("--part takes two fractions such as 0.667:1")
    return bounds


@bench.callback()
def compare(
    context: typer.Context,
    target: str = typer.Option("smollm2", help="Model to measure"),
    draft: str | None = typer.Option(None, help="Draft model, for modes that need one"),
    data: list[Path] = typer.Option([], help="Questions in Spec-Bench's JSON-lines form; several files may follow"),
    modes: str = typer.Option(
        "plain,paper:64,auto,pld,recycling,hf-plain,hf-pld", help=f"What to compare, comma-separated: {MODES}"
    ),
    max_tokens: int = typer.Option(128, min=1, help="Tokens of an answer at most"),
    limit: int | None = typer.Option(None, min=1, help="Questions, spread over the categories; all where not given"),
    dtype: str = dtype_option(),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps"),
    seed: int = typer.Option(0, min=0, help="Of sampling, and of the bootstrap"),
    temperature: float = typer.Option(0.0, min=0.0, max=2.0, help="0 is greedy"),
    warm: bool = typer.Option(False, "--warm", help="Keep each mode's copy-logit rows from question to question"),
    turns: bool = typer.Option(False, "--turns", help="Ask all turns of a question, not only the first"),
    threads: int | None = typer.Option(None, min=1, help="Threads; all usable CPUs where not given"),
    out: Path = typer.Option(Path("out/bench"), help="Directory of the results; a run that was cut off goes on there"),
    fresh: bool = typer.Option(False, "--fresh", help="Drop the results that are there"),
    prior_rows: int | None = prior_rows_option(),
) -> None:
    """Run the modes interleaved on the questions and write report.json, report.md and plots."""
    if context.invoked_subcommand is not None:
        return
    if not data:
        raise SettingsError("bench needs questions: give --data FILE")
    from bench.errors import BenchError
    from bench.markdown import as_markdown
    from bench.modes import parse_modes
    from bench.plan import Plan
    from bench.run import run

    try:
        plan = Plan(
            target=target,
            draft=draft,
            data=tuple(data),
            modes=parse_modes([modes]),
            max_tokens=max_tokens,
            limit=limit,
            dtype=dtype,
            device=device,
            seed=seed,
            temperature=temperature,
            warm=warm,
            turns=turns,
            threads=threads,
            prior_rows=prior_rows,
        )
        with stoppable():
            report = run(plan, out, fresh=fresh)
    except BenchError as error:
        raise SettingsError(str(error)) from error
    typer.echo(as_markdown(report, []))


@bench.command("kernels")
def kernels(
    out: Path | None = typer.Option(None, help="Directory for kernels.json"),
    rounds: int = typer.Option(300, min=10, help="Timed calls per figure"),
) -> None:
    """Time observe, propose and learn of each policy at 1k to 32k tokens of context."""
    from bench.kernels import as_table, measure_kernels

    report = measure_kernels(rounds=rounds)
    typer.echo(as_table(report))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "kernels.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


@bench.command("gauge", cls=DataCommand)
def gauge(
    target: str = typer.Option("smollm2", help="Model to measure"),
    data: list[Path] = typer.Option([], help="Questions in Spec-Bench's JSON-lines form; several files may follow"),
    mode: str = typer.Option("auto", help="What the service does: auto, or any other mode of ours"),
    max_tokens: int = typer.Option(128, min=2, help="Tokens of an answer at most"),
    limit: int | None = typer.Option(None, min=1, help="Questions, spread over the categories; all where not given"),
    dtype: str = dtype_option(),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps"),
    threads: int | None = typer.Option(None, min=1, help="Threads; all usable CPUs where not given"),
    prior_rows: int | None = prior_rows_option(),
) -> None:
    """Compare the gauge racer_speedup_ratio with the clock.

    Exit code 0: they agree within 10 %; 1: they do not; 3: they do not, but other programs used the processors meanwhile, so
    that nothing follows: measure again on a quiet machine.
    """
    if not data:
        raise SettingsError("bench gauge needs questions: give --data FILE")
    from bench.errors import BenchError
    from bench.gauge import measure
    from bench.modes import parse_modes
    from bench.plan import Plan

    try:
        plan = Plan(
            target=target,
            data=tuple(data),
            modes=parse_modes([mode]),
            max_tokens=max_tokens,
            limit=limit,
            dtype=dtype,
            device=device,
            threads=threads,
            prior_rows=prior_rows,
        )
        with stoppable():
            checked = measure(plan)
    except BenchError as error:
        raise SettingsError(str(error)) from error
    typer.echo(checked.describe())
    raise typer.Exit(checked.exit_code)


@bench.command("quality", cls=DataCommand)
def quality(
    target: str = typer.Option("smollm2", help="Model to measure"),
    draft: str | None = typer.Option(None, help="Draft model"),
    data: list[Path] = typer.Option([], help="HumanEval problems, questions with `reference`, or open questions"),
    modes: str = typer.Option(",".join(QUALITY_MODES), help=f"What to compare, comma-separated: {', '.join(QUALITY_MODES)}"),
    table: Path | None = typer.Option(None, help="Correction table (made by calibrate or ocm export) to start from"),
    part: str = typer.Option("0:1", help="Part of each file by fractions, such as 0.667:1 for its last third"),
    limit: int | None = typer.Option(None, min=1, help="Problems, taken from the files in turn; all where not given"),
    max_tokens: int = typer.Option(256, min=1, help="Tokens of an answer at most"),
    csd_lambda: float = typer.Option(6.0, "--lambda", min=0.0, help="Divergences a pair must exceed"),
    tau: float = typer.Option(0.01, help="The gate: above 0, at most 1"),
    dtype: str = dtype_option(),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:N or mps"),
    threads: int | None = typer.Option(None, min=1, help="Threads; all usable CPUs where not given"),
    seed: int = typer.Option(0, min=0, help="Of the bootstrap"),
    together: int = typer.Option(
        1, min=1, max=256, help="Answers at once: more of them an hour, but no longer one stream's speed"
    ),
    scored: bool = typer.Option(True, "--scores/--no-scores", help="Tell the target's own mean log-probability of each answer"),
    out: Path = typer.Option(Path("out/quality"), help="Directory of the results; a run that was cut off goes on there"),
    fresh: bool = typer.Option(False, "--fresh", help="Drop the results that are there"),
    prior_rows: int | None = prior_rows_option(),
) -> None:
    """Speed and price of each way to accept: right answers, agreement with plain, the target's own opinion of the text."""
    if not data:
        raise SettingsError("bench quality needs problems: give --data FILE")
    from bench.errors import BenchError
    from bench.quality.session import QualityPlan, measure

    bounds = fractions(part)
    plan = QualityPlan(
        target=target,
        draft=draft,
        data=tuple(data),
        modes=modes,
        table=table,
        part=bounds,
        limit=limit,
        max_tokens=max_tokens,
        csd_lambda=csd_lambda,
        tau=tau,
        dtype=dtype,
        device=device,
        threads=threads,
        seed=seed,
        together=together,
        scored=scored,
        prior_rows=prior_rows,
    )
    try:
        with stoppable():
            typer.echo(measure(plan, out, fresh=fresh))
    except BenchError as error:
        raise SettingsError(str(error)) from error
