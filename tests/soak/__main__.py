"""The long soak, as `make soak` runs it: python -m tests.soak [--seconds 600] [--seed 0]."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.servers import RedisServer, server_binary
from tests.soak.soak import LONG, soak


def main() -> int:
    """The exit code: 0 where everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Mixed traffic and store faults on a real server")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    binary = server_binary()
    if binary is None:
        sys.stderr.write("a soak needs valkey-server or redis-server; name one with TEST_REDIS_SERVER\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="racer-soak-") as name:
        directory = Path(name)
        redis = RedisServer(directory, binary)
        redis.start()
        try:
            report = soak(directory, redis, arguments.seconds, LONG, arguments.seed)
        finally:
            redis.kill9()
    sys.stdout.write(f"{report}\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
