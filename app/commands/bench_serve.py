"""The command `racer-csd bench serve`: put load on a running server and measure it from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from app.commands.bench import DataCommand, bench
from app.process import stoppable
from app.settings import SettingsError

AT_ONCE = 8  # requests of a closed loop where nothing is said


@bench.command("serve", cls=DataCommand)
def serve(
    url: str = typer.Option("http://127.0.0.1:8000", help="Address of the server"),
    data: list[Path] = typer.Option([], help="Questions in Spec-Bench's JSON-lines form; several files may follow"),
    concurrency: int | None = typer.Option(
        None, min=1, help=f"Closed loop: requests open at all times, {AT_ONCE} where not given; with --rate: at most"
    ),
    rate: float | None = typer.Option(None, min=0.001, help="Open loop: requests a second on average, at random moments"),
    limit: int | None = typer.Option(
        None, min=1, help="Requests of each way to decode, from the questions' start again if need be; all where not given"
    ),
    warmup: int = typer.Option(8, min=0, help="Requests of each way before the clock runs"),
    block: int | None = typer.Option(None, min=1, help="Requests of one way in a row, where several are compared"),
    max_tokens: int = typer.Option(128, min=1, help="Tokens of an answer at most"),
    temperature: float = typer.Option(0.0, min=0.0, max=2.0, help="0 is greedy"),
    seed: int = typer.Option(0, min=0, help="Of the arrivals, and of the first request; the next ones count up from it"),
    ignore_eos: bool = typer.Option(False, "--ignore-eos", help="Have every answer --max-tokens long"),
    speculative: list[str] = typer.Option(
        ["{}"], help='JSON object that requests carry; give it again to compare, as \'{"drafter":"none"}\' for plain'
    ),
    endpoint: Literal["chat", "completions"] = typer.Option("chat", help="Route to ask"),
    model: str | None = typer.Option(None, help="Model to name; the first that the server lists where not given"),
    api_key: str | None = typer.Option(None, envvar="RACER_BENCH_KEY", show_envvar=True, help="Bearer key of the server"),
    timeout: float = typer.Option(600.0, min=0.1, help="Seconds a request may take"),
    wait: float = typer.Option(60.0, min=0.0, help="Seconds to wait for a server that is not ready"),
    out: Path = typer.Option(Path("out/serve"), help="Directory of report.json, report.md and requests.jsonl"),
) -> None:
    """Measure throughput and latency of a server under load, several ways to decode interleaved in one run."""
    if not data:
        raise SettingsError("bench serve needs questions: give --data FILE")
    from bench.errors import BenchError
    from bench.load.plan import LoadPlan, base_url, parse_ways
    from bench.load.report import as_markdown
    from bench.load.run import run
    from bench.load.server import ServerError

    try:
        plan = LoadPlan(
            url=base_url(url),
            data=tuple(data),
            ways=parse_ways(speculative),
            endpoint=endpoint,
            model=model,
            concurrency=AT_ONCE if concurrency is None and rate is None else concurrency,
            rate=rate,
            limit=limit,
            warmup=warmup,
            block=block,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            ignore_eos=ignore_eos,
            timeout=timeout,
            wait=wait,
        )
        with stoppable():
            report = run(plan, out, api_key)
    except ServerError:
        raise  # no wrong usage
    except BenchError as error:
        raise SettingsError(str(error)) from error
    typer.echo(as_markdown(report))
