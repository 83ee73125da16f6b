"""The routes that the gate and the metrics go by are those of the app."""

from __future__ import annotations

import itertools

import pytest
from starlette.routing import Route

from app.api.auth import OPEN_PATHS
from app.api.openapi import BODIES
from app.api.routes import ADMIN, GENERATING, PATHS, label
from app.main import create_app
from tests.api.support import new_settings
from tests.synthetic import SyntheticEngine


def test_they_are_the_apps_own() -> None:
    app = create_app(new_settings(), SyntheticEngine)
    described = set(app.openapi()["paths"])
    assert described <= set(PATHS)
    hidden = {route.path_format for route in app.routes if isinstance(route, Route)} - described
    assert hidden <= set(PATHS)
    assert set(PATHS) - described == {"/", "/web/{file}", "/docs", "/docs/{file}", "/openapi.json"}


def test_what_is_named_by_hand_is_among_them() -> None:
    assert {"/v1/completions", "/v1/chat/completions"} == GENERATING
    assert any(path.startswith(ADMIN) for path in PATHS)
    assert set(itertools.chain(*OPEN_PATHS.values(), BODIES)) <= set(PATHS)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "/"),
        ("/health", "/health"),
        ("/v1/models/a/b", "/v1/models/{model}"),
        ("/web/chat.js", "/web/{file}"),
        ("/docs/start.js", "/docs/{file}"),
        ("/admin/ocm/export", "/admin/ocm/export"),
        ("/nothing", "/nothing"),
    ],
)
def test_labels(path: str, expected: str) -> None:
    assert label(path) == expected
