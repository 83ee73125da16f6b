"""Requests made up from the OpenAPI document, right and wrong: nothing gets a 5xx, and every refusal has OpenAI's shape."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok

from app.main import create_app
from tests.api.support import check_error, new_settings, served
from tests.synthetic import SyntheticEngine

SEEN: Counter[tuple[str, int]] = Counter()
SCHEMA = schemathesis.openapi.from_dict(create_app(new_settings(), SyntheticEngine).openapi())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(SyntheticEngine(max_context=256), admin_key="root") as url:
        yield url


def _no_server_error(case: schemathesis.Case, url: str) -> None:
    reply = case.call(base_url=url, headers={"Authorization": "Bearer root"})
    case.validate_response(reply, checks=[not_a_server_error])
    SEEN[case.operation.path, reply.status_code] += 1
    if reply.status_code >= 400 and case.method.upper() != "HEAD":
        check_error(reply, reply.status_code)


def _tests() -> Iterator[tuple[str, Callable[..., None]]]:
    """A separate test for each operation: schemathesis would give all the same id, and pytest-xdist would run only one."""
    for result in SCHEMA.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        name = re.sub(r"\W+", "_", operation.label).lower()

        @settings(max_examples=60, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
        def test(case: schemathesis.Case, url: str) -> None:
            _no_server_error(case, url)

        yield f"test_{name}", SCHEMA.include(path=operation.path, method=operation.method).parametrize()(test)


globals().update(_tests())


def test_the_made_up_requests_reach_the_engine() -> None:
    """Runs after those above: refusals alone would show little."""
    for path in ("/v1/completions", "/tokenize", "/detokenize", "/v1/models"):
        assert SEEN[path, 200], SEEN
    assert SEEN["/v1/completions", 400] and SEEN["/v1/chat/completions", 400]
