"""`python -m app.commands` is `racer-csd`."""

from app.commands.main import main

main()
