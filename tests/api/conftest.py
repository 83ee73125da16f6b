"""One synthetic engine and one app per test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tests.api.support import client_of
from tests.synthetic import SyntheticEngine


@pytest.fixture
def engine() -> Iterator[SyntheticEngine]:
    engine = SyntheticEngine()
    yield engine
    engine.close()


@pytest.fixture
def client(engine: SyntheticEngine) -> Iterator[TestClient]:
    with client_of(lambda: engine) as client:
        yield client
