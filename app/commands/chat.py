"""The command `racer-csd chat`: a conversation in the terminal, with an engine of its own or with a running server."""

from __future__ import annotations

import logging
from functools import partial

import typer

from app.assembly import load_engine
from app.engine.models.dtypes import DTYPE_HELP
from app.process import stoppable
from app.settings import SettingsError, read_settings


def chat(
    target: str | None = typer.Option(None, help="Model to use"),
    draft: str | None = typer.Option(None, help="Draft model, for draft_model and hybrid"),
    drafter: str | None = typer.Option(None, help="racer, draft_model, hybrid, or none for plain decoding"),
    verifier: str | None = typer.Option(None, help="exact, or csd: lossy, rescued tokens are underlined"),
    max_nodes: str | None = typer.Option(None, help="Largest draft tree, root included"),
    dtype: str | None = typer.Option(None, help=DTYPE_HELP),
    url: str | None = typer.Option(None, help="Talk to the server at this address, and load no model"),
    api_key: str | None = typer.Option(None, envvar="RACER_API_KEY", help="Key of that server"),
    system: str | None = typer.Option(None, help="System message"),
    max_tokens: int = typer.Option(1024, min=1, help="Tokens of an answer at most"),
    temperature: float = typer.Option(0.0, min=0.0, max=2.0, help="0 is greedy"),
    seed: int | None = typer.Option(None, help="Equal seeds give equal answers"),
    plain: bool = typer.Option(False, "--plain", help="Begin with plain decoding"),
) -> None:
    """Chat in the terminal; every token has the colour of its source. /help lists the commands.

    Ctrl-C stops an answer, Ctrl-D ends the program. Colours follow NO_COLOR, and a pipe gets the answers alone.
    """
    from app.chat.answers import EngineAnswer, ServerAnswer
    from app.chat.dialogue import AnswerSettings, Dialogue
    from app.chat.terminal import Terminal

    dialogue = Dialogue(AnswerSettings(max_tokens, temperature, seed), system, plain=plain)
    own = {"target": target, "draft": draft, "drafter": drafter, "verifier": verifier, "max_nodes": max_nodes, "dtype": dtype}
    if url is not None:
        if any(value is not None for value in own.values()):
            raise SettingsError(f"with --url the server decides on {', '.join(own)}; leave them out")
        if not url.startswith(("http://", "https://")):
            raise SettingsError("--url takes an address such as http://127.0.0.1:8000")
        terminal = Terminal(partial(ServerAnswer, url, api_key), dialogue)
        terminal.greet(f"Server {url}")
        raise typer.Exit(terminal.run())
    settings = read_settings(own | ({"allow_csd": True} if verifier == "csd" else {}))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    with stoppable():
        engine = load_engine(settings)
    try:
        info = engine.info
        terminal = Terminal(partial(EngineAnswer, engine), dialogue)
        terminal.greet(f"{info.name} on {info.device} ({info.dtype}), drafter {info.drafter}, verifier {info.verifier}")
        code = terminal.run()
    finally:
        engine.close()
    raise typer.Exit(code)
