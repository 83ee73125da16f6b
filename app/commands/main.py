"""The command `racer-csd`: serve, chat, fetch, generate, info, and the groups bench, calibrate and ocm."""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

import app.commands.bench_serve  # noqa: F401 - adds its command to bench
from app.assembly import csd_config, load_engine
from app.commands.bench import bench
from app.commands.calibrate import calibrate
from app.commands.chat import chat
from app.commands.info import info
from app.commands.ocm import ocm
from app.commands.options import with_setting_flags
from app.engine.errors import EngineClosed
from app.engine.events import Event, Failed, Finished
from app.engine.models.dtypes import DTYPE_HELP
from app.engine.request import DrafterName, GenerationRequest, SamplingParams, SpeculationParams, StopParams
from app.process import INTERRUPTED, TERMINATED, collect_garbage_rarely, leave, stoppable
from app.settings import SettingsError, check_together, read_settings, unknown_variables

if TYPE_CHECKING:  # the model libraries take seconds to import: only commands that need them pay
    from app.engine.interface import EngineInterface

logger = logging.getLogger("racer-csd")
FAILURE, USAGE = 1, 2

cli = typer.Typer(
    name="racer-csd",
    help="OpenAI-compatible inference that makes causal language models answer faster, without training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # --max_nodes is --max-nodes
    context_settings={"token_normalize_func": lambda name: name.replace("_", "-"), "help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point. Exit code 0: all went well, 1: a failure, 2: wrong usage, 130: Ctrl-C, 143: SIGTERM.

    Errors are one line on stderr.
    """
    _spin_briefly()
    collect_garbage_rarely()
    try:
        cli()
    except SystemExit as end:
        if end.code in (INTERRUPTED, TERMINATED):
            leave(end.code)
        raise
    except KeyboardInterrupt:
        leave(INTERRUPTED)
    except SettingsError as error:
        _fail(str(error), USAGE)
    except Exception as error:
        logger.debug("failed", exc_info=error)
        _fail(_one_line(error), FAILURE)


def _spin_briefly() -> None:
    """Have OpenMP's threads wait for each other asleep after some 10,000 turns, not 300,000; call it before torch is loaded.

    Threads that share their cores with other work would spin through the time of the thread they wait for. A passive wait
    would do as well, but costs 4 % of a step on an idle machine; this costs nothing measurable.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


# -- serve ---------------------------------------------------------------------------------------------------------------


def serve(**flags: Any) -> None:
    """Serve a model over HTTP. Every flag is also an environment variable: --max-nodes is RACER_MAX_NODES."""
    _die_of_sigterm()
    settings = read_settings(flags)
    check_together(settings)
    if os.environ.get("WEB_CONCURRENCY", "1") not in ("", "1"):
        raise SettingsError("WEB_CONCURRENCY asks for several workers, but one process holds the model; unset it")
    from app.server import run

    csd_config(settings)  # a store that cannot be is wrong usage, not a failed load

    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for line in unknown_variables(os.environ):
        logger.warning(line)
    sys.exit(run(settings, lambda: load_engine(settings), _one_line))


def _die_of_sigterm() -> None:
    """Until the server has a handler: process 1 of a container has no default action, and would never see the signal."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))


cli.command("serve")(with_setting_flags(serve))
cli.command("chat")(chat)
cli.command("info")(info)
cli.add_typer(bench)
cli.add_typer(calibrate)
cli.add_typer(ocm)

# -- the other commands --------------------------------------------------------------------------------------------------


@cli.command("fetch")
def fetch(
    name: str = typer.Argument("smollm2", help="Built-in model to fetch"),
    cache_dir: Path | None = typer.Option(None, envvar="RACER_CACHE_DIR", help="Directory to keep it in"),
) -> None:
    """Fetch a built-in model and convert it, so that `serve` starts at once."""
    from app.engine.models.fetch import fetch_default

    typer.echo(fetch_default(name, cache_dir))


@cli.command("generate")
def generate(
    prompt: str = typer.Argument(help="What to answer; - reads standard input"),
    target: str | None = typer.Option(None, help="Model to use"),
    max_tokens: int = typer.Option(256, min=1, help="Tokens to generate at most"),
    temperature: float = typer.Option(0.0, min=0.0, max=2.0, help="0 is greedy"),
    seed: int | None = typer.Option(None, help="Equal seeds give equal answers"),
    drafter: str | None = typer.Option(None, help="racer, draft_model, hybrid, or none for plain decoding"),
    draft: str | None = typer.Option(None, help="Draft model, for draft_model and hybrid"),
    max_nodes: str | None = typer.Option(None, help="Largest draft tree, root included"),
    dtype: str | None = typer.Option(None, help=DTYPE_HELP),
    raw: bool = typer.Option(False, "--raw", help="Continue the text itself, without the chat template"),
) -> None:
    """Answer one prompt: text on standard output as it comes, figures on standard error.

    Exit codes: 0, 1 on a failure, 2 on wrong usage, 130 after Ctrl-C.
    """
    settings = read_settings({"target": target, "draft": draft, "drafter": drafter, "max_nodes": max_nodes, "dtype": dtype})
    check_together(settings)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    text = sys.stdin.read() if prompt == "-" else prompt
    with stoppable():
        engine = load_engine(settings)
    try:
        _print_answer(engine, text, max_tokens, temperature, seed, settings.drafter, raw=raw)
    finally:
        engine.close()


def _print_answer(
    engine: EngineInterface,
    text: str,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    drafter: DrafterName,
    *,
    raw: bool,
) -> None:
    ids = engine.codec.encode(text) if raw else engine.codec.encode_chat([{"role": "user", "content": text}])
    request = GenerationRequest(
        tuple(ids),
        SamplingParams(temperature=temperature, seed=seed),
        StopParams(max_tokens=max_tokens),
        SpeculationParams(drafter=drafter),
        continue_text=raw,
    )
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    started = time.monotonic()
    engine.submit(request, events.put)
    while True:
        event = events.get()
        if isinstance(event, Failed):
            raise event.error
        typer.echo(event.text, nl=False)
        if isinstance(event, Finished):
            break
    typer.echo()
    if event.reason == "cancelled":
        raise EngineClosed
    typer.echo(_figures(event, time.monotonic() - started), err=True)


def _figures(end: Finished, seconds: float) -> str:
    stats = end.stats
    rate = end.completion_tokens / seconds if seconds else 0.0
    return (
        f"{end.prompt_tokens} prompt tokens, {end.completion_tokens} generated in {seconds:.2f} s ({rate:.1f} tokens/s with "
        f"prefill), {stats.mean_acceptance_length:.2f} tokens per verify step, drafter {stats.drafter}, ended by {end.reason}"
    )


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    known = type(error).__module__.startswith(("app.", "bench.", "csd.")) or isinstance(error, OSError)
    return text if known else f"{type(error).__name__}: {text}"


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"racer-csd: error: {message}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
