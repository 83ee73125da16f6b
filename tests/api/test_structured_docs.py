"""The examples of docs/structured.md run as they stand, but for the address and the model."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from app.main import create_app
from tests.api.support import new_settings, serving
from tests.structured import json_engine
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "structured.md"


@pytest.mark.slow
def test_the_examples() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    printed = []
    with json_engine() as engine:
        app = create_app(new_settings(), lambda: engine)
        with serving(app) as url:
            wait_until(lambda: app.state.service.status() is not None)
            for block in blocks:
                code = re.sub(r'model="[^"]*"', f'model="{engine.info.name}"', block.replace("http://127.0.0.1:8000", url))
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile(code, str(PAGE), "exec", dont_inherit=True), {"__name__": "example"})
                printed.append(out.getvalue())
    review, call = printed
    assert re.fullmatch(r"sentiment='(good|bad|mixed)' stars=[1-5]\n", review)
    name, arguments = call.split(" ", 1)
    assert name == "weather"
    assert set(json.loads(arguments)) == {"city", "unit"}
