"""`racer-csd` on a tiny model that never ends an answer by itself: what the tests of the terminal drive through a pty."""

from __future__ import annotations

import fcntl
import sys
import termios

from app.commands import chat as chat_command
from app.commands import main as cli
from app.engine.engine import Engine, EngineConfig
from app.settings import Settings
from tests.engine.drafting import FLAT
from tests.tiny import CHAT_TEMPLATE, loaded

CONTEXT = 20_000


def load(settings: Settings) -> Engine:
    tiny = loaded(eos=frozenset(), max_context=CONTEXT, chat_template=CHAT_TEMPLATE)
    return Engine(tiny, EngineConfig(drafter=settings.drafter, max_nodes=24, prior_rows=0, cost_curve=FLAT))


if __name__ == "__main__":
    if sys.stdin.isatty():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C on it reaches this process
    for module in (cli, chat_command):
        setattr(module, "load_engine", load)  # noqa: B010
    cli.main()
