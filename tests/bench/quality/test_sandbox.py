"""Generated code is bounded."""

from __future__ import annotations

import pytest

from bench.quality.sandbox import passes


def test_a_program_that_ends_well_passes():
    assert passes("import json, math\nassert math.gcd(4, 6) == 2\nprint(json.dumps(1))")


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(3)",
        "assert False",
        "def broken(",
        "import socket\nsocket.create_connection(('127.0.0.1', 9))",
        "x = bytearray(2 << 30)",
        "open('f', 'wb').write(b'0' * (2 << 20))",
        "import os\nos.abort()",
        "import sys\nsys.exit()",
        "import os\nos._exit(0)",
    ],
)
def test_failures_and_excesses_do_not(program: str):
    assert not passes(program)


def test_a_program_that_never_ends_is_ended():
    assert not passes("import time\ntime.sleep(60)", seconds=1.0)
    assert not passes("while True: pass", seconds=1.0)


def test_code_finds_no_environment_and_an_empty_directory():
    assert passes("import os\nassert os.listdir('.') == []\nassert not any(name.startswith('RACER') for name in os.environ)")
